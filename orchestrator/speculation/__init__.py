"""The speculation that a turn asks for, and the proposals of a draft. Pure: no I/O, no wire."""
