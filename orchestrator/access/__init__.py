"""Identify the caller: from a token or a certificate to a principal."""
