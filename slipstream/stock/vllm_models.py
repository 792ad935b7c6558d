"""The list of models that a vLLM server serves: one model under several names, and adapters of it.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.engine.errors import UnsupportedModelError

Card = Mapping[str, Any]
"""An entry of /v1/models. An adapter's has its model as parent, and no max_model_len."""


def find_model(cards: Sequence[Card], model: str, served_as: str) -> tuple[str, int]:
    """Return the name by which a server serves ``model``, and the longest sequence in tokens.

    ``served_as`` is the name to look for; empty: a name or the path of the model, or any name if
    the server has one model. UnsupportedModelError if it is not there.
    """
    bases = [card for card in cards if card.get("parent") is None]
    found = [card for card in cards if (served_as or model) in (card["id"], card.get("root"))]
    if not (found or served_as) and len({card.get("root") for card in bases}) == 1:
        found = bases
    if not found:
        names = ", ".join(str(card["id"]) for card in cards)
        flag = f"--engine-model is {served_as}" if served_as else f"--model is {model}"
        raise UnsupportedModelError(
            f"vLLM serves {names or 'no model'}, and {flag}: give the name that it serves the model by as --engine-model"
        )
    lengths = [card.get("max_model_len") for card in (found[0], *bases)]
    length = next((length for length in lengths if isinstance(length, int)), None)
    if length is None:
        raise UnsupportedModelError(f"vLLM does not tell the max_model_len of {found[0]['id']}")
    return str(found[0]["id"]), length
