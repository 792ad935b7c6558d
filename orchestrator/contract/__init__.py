"""The public contract on the wire. Its messages end here."""
