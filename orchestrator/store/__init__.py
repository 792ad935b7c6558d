"""The store of sessions: rows that survive a process, and the owner of each session."""
