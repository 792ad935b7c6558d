"""Generated from protos/slipstream/v1; regenerate with make protos."""
