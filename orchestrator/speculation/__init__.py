"""What a turn may ask for, and what a draft proposes. Pure: no I/O, no wire."""
