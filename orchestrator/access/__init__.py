"""Who asks: from what a call shows, a token or a certificate, to a principal. Knows nothing of
sessions beside that."""
