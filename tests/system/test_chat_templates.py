"""A model whose chat template is broken is served: chats are refused with the reason, raw prompts
are answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, PeerError, Settings
from slipstream.errors import Code
from tests import tiny_models

SHORT = Settings(max_token_count=4, draft_length=0, ignore_end_tokens=True)


def test_a_broken_chat_template_disables_chats_alone(tmp_path: Path) -> None:
    directory = tiny_models.save(tiny_models.build("llama"), tmp_path / "target")
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}\n{% broken %}")
    pair = PairSettings(target=str(directory), draft="")
    with LocalServices(pair) as served, Client(served.orchestrator_address) as client:
        assert len(client.generate("hello", SHORT).wait().token_ids) == 4
        with pytest.raises(PeerError, match="line 2: Encountered unknown tag 'broken'") as caught:
            client.answer([("user", "hello")], SHORT).wait()
        assert (caught.value.code, caught.value.reason) == (Code.FAILED_PRECONDITION, "CHAT_TEMPLATE_BROKEN")
        assert len(client.generate("hello", SHORT).wait().token_ids) == 4
