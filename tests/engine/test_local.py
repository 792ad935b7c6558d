"""How services on this machine are told to share it."""

import re
from pathlib import Path

import pytest

from slipstream import stages
from slipstream.cli import local
from slipstream.cli.local import LocalServices, PairSettings, is_small
from slipstream.cli.service_process import Service
from slipstream.compilation import PROGRESS
from slipstream.engine.compiled import loading
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.stages import CHECKING, DOWNLOADING, LOADING, LOOKING, WARMING, last_stage

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


def test_a_service_tells_the_stage_of_its_start_and_how_far_it_is(tmp_path: Path) -> None:
    service = Service.__new__(Service)
    service.log = tmp_path / "log"
    service.log.touch()
    assert service.stage() == "starting"
    stages = [
        f"{LOOKING} org/name",
        f"{DOWNLOADING} org/name: 1.5 of 4.4 GB",
        LOADING,
        f"{PROGRESS}: 1 of 4",
        f"{PROGRESS}: 4 of 4",
        WARMING,
    ]
    for stage in stages:
        with service.log.open("a") as log:
            print(f"12:00:01 verifier INFO {stage}\n12:00:02 verifier INFO another line", file=log)
        assert service.stage() == stage


def test_a_model_that_is_read_slowly_tells_how_much_is_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stages, "QUIET_SECONDS", 0.0)
    caplog.set_level("INFO")
    directory = str(embedded_directory("draft"))
    loading.load_compiled(directory, dtype="bfloat16", page_size=16, single_rows=False, threads=1)
    checked = [message for message in caplog.messages if message.startswith(f"{CHECKING}: ")]
    assert re.fullmatch(rf"{CHECKING}: (\d+\.\d) of \1 MB", checked[-1])
    told = [message for message in caplog.messages if message.startswith(f"{LOADING}: ")]
    assert re.fullmatch(rf"{LOADING}: (\d+) of \1 layers", told[-1])
    assert last_stage(f"12:00:01 draft INFO {line}" for line in caplog.messages) == told[-1]
