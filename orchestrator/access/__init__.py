"""Identification of callers: from a token or a certificate to a principal."""
