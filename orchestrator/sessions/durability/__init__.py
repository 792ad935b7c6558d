"""Sessions in memory and in the store: persistence, takeover, eviction and maintenance."""
