"""How much to speculate, on what, and when. Pure: no I/O, no wire."""
