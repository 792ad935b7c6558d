"""`slipstream pull` and `slipstream list`: the real downloader, and a hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.hub.pairs import known_pairs
from tests.fake_hub import COMMIT, WEIGHTS, FakeHub
from tests.system.test_full_disk import small_disk


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    made = FakeHub(embedded_directory("target"), weights_byte_count=0)
    made.files[WEIGHTS] = (embedded_directory("target") / WEIGHTS).read_bytes()
    made.let_go.set()
    with made.serving():
        yield made


def run(hub: FakeHub, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    known = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-m", "slipstream.cli", *arguments]
    environment = {**os.environ, **known, "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def snapshot(home: Path) -> Path:
    return home / "hub" / "models--org--name" / "snapshots" / COMMIT


def last_line(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    return ended.stderr.splitlines()[-1]


@pytest.mark.essential
def test_the_files_that_are_served_come_and_are_listed(hub: FakeHub, tmp_path: Path) -> None:
    hub.files |= {"pytorch_model.bin": b"pickle", "consolidated.safetensors": b"copy", "own.py": b"", "README.md": b""}
    ended = run(hub, tmp_path, "pull", "org/name")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{snapshot(tmp_path)}\n"
    assert "downloading org/name: " in ended.stderr
    come = {path.name for path in snapshot(tmp_path).iterdir()}
    assert come >= {"config.json", "tokenizer.json", WEIGHTS}
    assert not come & {"pytorch_model.bin", "consolidated.safetensors", "own.py", "README.md"}
    assert (snapshot(tmp_path) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]
    listed = json.loads(run(hub, tmp_path, "list", "--json").stdout)
    (model,) = listed["models"]
    assert (model["name"], model["revision"], model["kind"]) == ("org/name", "main", "safetensors")
    assert model["served_by"] == "compiled" and not model["refusal"]
    assert model["byte_count"] >= len(hub.files[WEIGHTS])
    assert [pair["target"] for pair in listed["pairs"]] == [pair.target for pair in known_pairs()]
    assert "org/name" in run(hub, tmp_path, "list").stdout


@pytest.mark.parametrize("says_how", [True, False])
def test_quantised_weights_are_listed_for_drafts_if_the_config_says_how(
    hub: FakeHub, tmp_path: Path, says_how: bool
) -> None:
    config = json.loads(hub.files["config.json"])
    if says_how:
        hub.files["config.json"] = json.dumps(config | {"quantization_config": {"quant_method": "torchao"}}).encode()
    else:
        hub.files["quant_config.json"] = b"{}"
    assert run(hub, tmp_path, "pull", "org/name").returncode == 0
    (model,) = json.loads(run(hub, tmp_path, "list", "--json").stdout)["models"]
    assert (model["served_by"], model["draft_only"]) == (("torch", True) if says_how else ("", False))
    assert says_how == ("torch, as a draft" in run(hub, tmp_path, "list").stdout)
    assert says_how != ("quantised" in model["refusal"])


def test_one_gguf_file_comes_with_its_other_parts(hub: FakeHub, tmp_path: Path) -> None:
    parts = [f"model-q8-0000{number}-of-00002.gguf" for number in (1, 2)]
    hub.files |= dict.fromkeys((*parts, "model-q4.gguf"), b"GGUF")
    ended = run(hub, tmp_path, "pull", "org/name", "--gguf", parts[0])
    assert ended.stdout == f"{snapshot(tmp_path) / parts[0]}\n", ended.stderr
    come = {path.name for path in snapshot(tmp_path).iterdir()}
    assert come >= {*parts, "tokenizer.json"} and not come & {"model-q4.gguf", WEIGHTS}
    (model,) = json.loads(run(hub, tmp_path, "list", "--json").stdout)["models"]
    assert model["kind"] == "GGUF" and "cannot be read" in model["refusal"]


def test_a_download_that_breaks_off_goes_on_where_it_was(hub: FakeHub, tmp_path: Path) -> None:
    hub.files[WEIGHTS] = bytes(25_000_000)
    hub.cuts = True
    assert "was not downloaded" in last_line(run(hub, tmp_path, "pull", "org/name"))
    assert hub.ranges[0] is None and hub.ranges[1] == "bytes=10485760-", "the downloader writes parts of 10 MiB"
    hub.cuts = False
    assert run(hub, tmp_path, "pull", "org/name").returncode == 0
    assert (snapshot(tmp_path) / WEIGHTS).stat().st_size == 25_000_000
    asked = len(hub.ranges)
    assert run(hub, tmp_path, "pull", "org/name").returncode == 0
    assert len(hub.ranges) == asked, "it is there"


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        ((404, "RepoNotFound"), "there is no org/name at "),
        ((403, "GatedRepo"), "org/name is gated: accept its terms at "),
        ((404, "RevisionNotFound"), "org/name has no revision v2: "),
        ((429, ""), " asks to wait"),
    ],
)
def test_a_refusal_says_what_to_do(refusal: tuple[int, str], line: str, hub: FakeHub, tmp_path: Path) -> None:
    hub.refusals = {"/api/models": refusal}
    assert line in last_line(run(hub, tmp_path, "pull", "org/name@v2"))


def test_weights_that_are_not_served_are_named(hub: FakeHub, tmp_path: Path) -> None:
    del hub.files[WEIGHTS]
    assert "org/name has no weights" in last_line(run(hub, tmp_path, "pull", "org/name"))
    hub.files["pytorch_model.bin"] = b"pickle"
    assert "only pickled weights" in last_line(run(hub, tmp_path, "pull", "org/name"))
    hub.files["model-q4.gguf"] = b"GGUF"
    for flags in ([], ["--gguf", "other.gguf"]):
        line = last_line(run(hub, tmp_path, "pull", "org/name", *flags))
        assert line.endswith("choose one of its GGUF files with --gguf: model-q4.gguf")


def test_no_network_and_a_name_that_cannot_be_are_told(hub: FakeHub, tmp_path: Path) -> None:
    assert "is no name of a model" in last_line(run(hub, tmp_path, "pull", "a//b"))
    hub.url = "http://127.0.0.1:9"
    assert "was not downloaded from http://127.0.0.1:9" in last_line(run(hub, tmp_path, "pull", "org/name"))


def test_a_full_disk_is_told(hub: FakeHub, tmp_path: Path) -> None:
    with small_disk(tmp_path):
        line = last_line(run(hub, tmp_path, "pull", "org/name"))
    assert "the disk is full: org/name does not fit into " in line


def test_each_figure_of_a_pair_has_its_source_and_conditions() -> None:
    pairs = known_pairs()
    assert len({(pair.target, pair.draft) for pair in pairs}) == len(pairs)
    for pair in pairs:
        assert (pair.acceptance is None) == (not pair.source) == (not pair.conditions)
        assert pair.licence and (pair.acceptance is None or 0 < pair.acceptance < 1)
