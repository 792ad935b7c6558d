"""Standard streams that need not be UTF-8: what is read from them is text or refused, what cannot
be shown is replaced."""

from __future__ import annotations

import codecs
import io
import os
import sys
from pathlib import Path

from slipstream.errors import SlipstreamError
from slipstream.reasons import Reason
from slipstream.transport.reloading import FileError


class NotTextError(SlipstreamError):
    """Bytes that were read or given are no text."""

    reason = Reason.NOT_TEXT


def settle_streams() -> None:
    """Let standard input have any bytes, which `text_of` judges, and let output show "?" for what
    its encoding lacks."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def shows_unicode() -> bool:
    """Return whether standard output has every letter."""
    return codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"


def text_of(read: str, encoding: str, where: str) -> str:
    """Return what was read with surrogates for bytes that ``encoding`` lacks. Those bytes may be
    UTF-8 all the same.

    NotTextError, which names ``where``, if they are not.
    """
    try:
        read.encode()
    except UnicodeEncodeError:
        raw = read.encode(encoding, "surrogateescape")
    else:
        return read
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        found = f"byte 0x{raw[error.start]:02x} at position {error.start + 1}"
        raise NotTextError(f"{where} is not UTF-8: {found}") from error


def argument_text(given: str, name: str) -> str:
    """Return an argument's text. NotTextError, which names the argument, if its bytes are none."""
    return text_of(given, sys.getfilesystemencoding(), name)


def file_text(name: str, path: Path) -> str:
    """Return the text of an argument's file. FileError, NotTextError, which name the argument."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise FileError(f"{name} {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x} at position {error.start + 1}"
        raise NotTextError(f"{name} {path} is not UTF-8: {found}") from error


def line_text(line: str, number: int) -> str:
    """Return a line of standard input, counted from 1. NotTextError if its bytes are no text."""
    return text_of(line.rstrip(os.linesep), sys.stdin.encoding, f"line {number} of standard input")
