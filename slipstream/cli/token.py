"""Make a new token: it is shown once, with the entry for the orchestrator's access file."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from slipstream.bearer_tokens import make_token


def token_and_entry(name: str, days: int, now: datetime | None = None, *, ascii_only: bool = False) -> tuple[str, str]:
    """A token that counts for so many days, and the lines (TOML) that let it in as ``name``."""
    token, kept = make_token()
    expires = ((now or datetime.now(UTC)) + timedelta(days=days)).replace(microsecond=0)
    shown = f'id = "{kept.id}", salt = "{kept.salt}", sha256 = "{kept.sha256}", expires = {expires.isoformat()}'
    quoted = json.dumps(name, ensure_ascii=False)
    if ascii_only:  # JSON's own escapes are pairs of surrogates, which TOML does not have
        quoted = "".join(letter if letter.isascii() else f"\\U{ord(letter):08X}" for letter in quoted)
    return token, f"[[principals]]\nname = {quoted}\ntokens = [{{ {shown} }}]"
