"""Tokenizers through real services: a conversation's ids, and a draft that splits text
otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings, Structure
from slipstream.rpc.status import PeerError
from tests import tiny_models
from tests.system.test_bad_input import info_once_the_draft_is_reached
from tests.tokenizer_models import CASES, QUESTIONS

END = "<|end|>"


def checkpoint(directory: Path, name: str) -> Path:
    """A tiny Llama with that tokenizer, whose answers end with the token that the template puts
    there."""
    case = next(case for case in CASES if case.name == name)
    tokenizer = case.build()
    model = tiny_models.build(
        "llama", vocab_size=tokenizer.get_vocab_size(), bos_token_id=1, eos_token_id=tokenizer.token_to_id(END)
    )
    model.save_pretrained(directory)
    config = (directory / "config.json").read_text()
    case.write(directory)
    (directory / "config.json").write_text(config)
    return directory


def test_three_turns_have_the_ids_of_transformers_and_a_draft_that_splits_otherwise_is_refused(tmp_path: Path) -> None:
    target, draft = checkpoint(tmp_path / "target", "phi3-rstrip"), checkpoint(tmp_path / "draft", "phi3-rstrip-first")
    engine = ("--engine", "torch")
    pair = PairSettings(
        str(target), str(draft), dtype="float32", target_flags=engine, draft_flags=(*engine, "--target-tokenizer", "")
    )
    with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
        info = info_once_the_draft_is_reached(client)
        with pytest.raises(PeerError) as caught:
            client.generate("hello").wait()
        assert caught.value.reason == "TOKENIZER_MISMATCH"
        assert info.target.tokenizer_fingerprint in str(caught.value)
        assert info.draft.tokenizer_fingerprint in str(caught.value)
        answer = Settings(draft_length=0, structure=Structure(choices=["The end"]))
        session = client.create_session(settings=answer)
        for question in QUESTIONS:
            assert session.send(question).wait().text == "The end"
        turns = client.export_session(session.session_id)["turns"]
    _compare(AutoTokenizer.from_pretrained(target), turns)


def _compare(tokenizer: Any, turns: list[dict[str, Any]]) -> None:
    """The ids before an answer stay, and those after it are transformers', which has other tokens
    for the answer itself."""
    tokens: list[int] = []
    conversation: list[dict[str, str]] = []
    end = tokenizer.convert_tokens_to_ids(END)
    for turn in turns:
        assert turn.get("sharedTokenCount", 0) == len(tokens), "what was generated stays as it was"
        tokens += turn["promptTokenIds"]
        conversation.append({"role": "user", "content": turn["content"]})
        expected = tokenizer.apply_chat_template(conversation, add_generation_prompt=True)["input_ids"]
        assert tokens.count(end) == expected.count(end)
        assert expected[-len(turn["promptTokenIds"]) :] == turn["promptTokenIds"]
        tokens += turn["tokenIds"]
        assert tokens[-1] == end
        conversation.append({"role": "assistant", "content": turn["text"]})
