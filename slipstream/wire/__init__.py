"""The wire between Slipstream's own services: it may change with them."""
