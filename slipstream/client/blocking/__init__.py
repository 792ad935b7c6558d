"""grpc in threads."""
