"""grpc on an event loop."""
