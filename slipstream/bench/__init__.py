"""A load generator for servers of language models: OpenAI's HTTP API, or Slipstream's gRPC."""
