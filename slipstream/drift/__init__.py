"""Acceptance compared with its own last week: what ``slipstream drift`` finds in the hours that an
orchestrator has counted. Pure."""
