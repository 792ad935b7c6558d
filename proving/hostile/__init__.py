"""Messages that nobody should send, to every method of every service, beside sessions that must not
notice."""
