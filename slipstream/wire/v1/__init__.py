"""Generated from protos/slipstream/wire/v1; regenerate with make protos."""
