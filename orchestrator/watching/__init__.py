"""Traces, totals, the ring of last turns, and the log: what turns report of themselves."""
