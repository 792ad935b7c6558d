"""A comparison of a server's tokenizer with that of --model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.engine.errors import UnsupportedModelError
from slipstream.stock.openai_http import EngineHttp
from slipstream.stock.protocol import EngineRefusedError


class TokenProbe(NamedTuple):
    """A text, and the token ids that the model's own tokenizer gives for it."""

    text: str
    tokens: Sequence[int]

    async def compare(self, http: EngineHttp, engine: str, served: str, name: str) -> list[str]:
        """Compare with the tokenizer of a server that ``served`` names its model by. Returns what
        the server lacks for it. UnsupportedModelError if they differ."""
        try:
            body = {"model": served, "prompt": self.text, "add_special_tokens": False}
            answer = await http.json("/tokenize", body)
        except EngineRefusedError:
            return ["/tokenize (its tokenizer was not compared)"]
        if answer.get("tokens") != [*self.tokens]:
            raise UnsupportedModelError(
                f"{engine} serves {served} with another tokenizer than that of {name}: --model has to name the "
                "model that the server serves"
            )
        return []
