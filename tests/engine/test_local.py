"""How services on this machine are told to share it."""

from pathlib import Path

import pytest

from slipstream.cli import local
from slipstream.cli.local import LocalServices, PairSettings, is_small
from slipstream.hosting.tokenizer_files import embedded_directory

LARGE = 2**26 + 1


def sized(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def test_a_drafts_size_is_its_weights(tmp_path: Path) -> None:
    assert is_small("embedded")
    assert is_small("arithmetic:period=5")
    assert is_small(str(embedded_directory("draft")))
    assert not is_small("example/draft-1b")  # as large as what people serve
    sized(tmp_path / "tokenizer.json", LARGE)
    sized(tmp_path / "model-1.safetensors", LARGE - 1)
    assert is_small(str(tmp_path))
    sized(tmp_path / "model-2.safetensors", 1)
    assert not is_small(str(tmp_path))
    assert is_small(str(sized(tmp_path / "small.gguf", 10)))
    assert not is_small(str(sized(tmp_path / "large.gguf", LARGE)))


@pytest.mark.parametrize(
    ("draft", "device", "is_one"),
    [("embedded", "cpu", True), ("example/draft-1b", "cpu", False), ("embedded", "cuda", False)],
)
def test_a_small_draft_has_one_thread_beside_its_target(
    draft: str, device: str, is_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []
    monkeypatch.setattr(local, "Service", lambda name, module, address, flags, environment: told.append(flags))
    LocalServices(PairSettings(draft=draft, device=device)).start_draft()
    assert ("--threads" in told[0]) == is_one
