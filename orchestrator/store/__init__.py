"""Where sessions are written down: what survives a process, and who keeps what."""
