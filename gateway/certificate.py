"""The gateway's own certificate, read again when its files change."""

from __future__ import annotations

import ssl

from slipstream.transport.certificates import TlsFiles
from slipstream.transport.reloading import Reloaded


def reloaded_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context whose new connections show the certificate that the files hold by then.
    FileError."""
    reloaded = Reloaded(files.paths, lambda: _context(files))
    first = reloaded.current

    def renew(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = reloaded.current

    # OpenSSL asks at each handshake, also of a client that names no host.
    first.sni_callback = renew
    return first


def _context(files: TlsFiles) -> ssl.SSLContext:
    files.pair()  # says what is wrong with them
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context
