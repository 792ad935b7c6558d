"""The bytes of single tokens, from how a vocabulary spells them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BAD = "\ufffd"


def byte_of(tokenizer: Tokenizer, token: int) -> int | None:
    """Return the byte that a token is by its name, as <0x0A>; None if it is no byte."""
    spelt = _BYTE.fullmatch(tokenizer.id_to_token(token) or "")
    return None if spelt is None else int(spelt[1], 16)


def token_bytes(tokenizer: Tokenizer, context: Sequence[int], token: int) -> bytes:
    """Return the bytes that a token adds to a text after the tokens of ``context``. An id without
    a token has none."""
    before = tokenizer.decode(list(context), skip_special_tokens=False)
    text = tokenizer.decode([*context, token], skip_special_tokens=False)[len(before) :]
    if _BAD not in text:
        return text.encode()
    byte = byte_of(tokenizer, token)
    if byte is not None:
        return bytes([byte])
    spelt = tokenizer.id_to_token(token) or ""
    if all(character in _BYTES for character in spelt):
        return bytes(_BYTES[character] for character in spelt)
    return text.encode()


def _byte_alphabet() -> dict[str, int]:
    """Return the characters that byte-level vocabularies write for bytes: printable ones for
    themselves, the others from U+0100 on (GPT-2's bytes_to_unicode)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_alphabet()
