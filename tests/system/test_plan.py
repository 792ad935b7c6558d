"""`slipstream plan` as a command: tables, JSON, a picture, and one line for what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.hosting.tokenizer_files import embedded_directory
from tests.commands import run

PAIR = ["--target", "llama-3.1-70b", "--draft", "llama-3.1-8b", "--gpus", "4xh200"]
SHORT = ["--acceptance", "0.8", "--round-trip", "1"]

BASE_ONLY = """
import sys
for name in ("torch", "transformers", "numpy", "numba", "safetensors", "opentelemetry", "tokenizers"):
    sys.modules[name] = None
from slipstream.cli.__main__ import main
main()
"""


@pytest.mark.essential
def test_a_plan_of_known_models_needs_the_base_package_alone() -> None:
    command = [sys.executable, "-c", BASE_ONLY, "plan", *PAIR, *SHORT, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    plan = json.loads(ended.stdout)
    assert [round(plan[role]["weight_bytes"] / 1e9) for role in ("target", "draft")] == [141, 16]
    assert plan["fits"] and not plan["would_fit"]
    apart, shared = plan["ways"]
    assert (apart["placement"]["ranks"], apart["placement"]["is_shared"]) == (2, False)
    assert (shared["placement"]["ranks"], shared["placement"]["is_shared"]) == (4, True)
    (speed,) = apart["speeds"]
    assert (speed["acceptance"], speed["round_trip_seconds"]) == (0.8, 0.001)
    assert speed["tokens_per_second"] > 1.5 * speed["plain_tokens_per_second"]
    assert "a simulation, not a measurement" in plan["assumptions"][0]


def test_tables_and_a_picture_show_the_plan(tmp_path: Path) -> None:
    svg = tmp_path / "plan.svg"
    ended = run("plan", *PAIR, *SHORT, "--svg", str(svg))
    assert ended.returncode == 0, ended.stderr
    for text in ("141 GB in bfloat16", "16.1 GB in bfloat16", "2 x h200 + 1 x h200", "draft 1 ms away", "assumptions:"):
        assert text in ended.stdout
    assert svg.read_text().startswith("<?xml") and "</svg>" in svg.read_text()


def test_a_model_of_a_folder_is_planned_on_processors() -> None:
    models = ["--target", str(embedded_directory("target")), "--draft", str(embedded_directory("draft"))]
    cpu = ["--gpus", "cpu", "--cpu-memory", "8", "--cpu-bandwidth", "20", "--cpu-tflops", "0.5"]
    ended = run(
        "plan", *models, *cpu, *SHORT, "--context", "256", "--host-ms", "1", "--bandwidth-share", "0.8", "--json"
    )
    assert ended.returncode == 0, ended.stderr
    plan = json.loads(ended.stdout)
    assert [way["placement"]["is_shared"] for way in plan["ways"]] == [True]
    assert "at 80% of the memory's bandwidth" in plan["assumptions"][1]
    assert "takes 1 ms more" in plan["assumptions"][1]


def test_where_nothing_fits_the_last_line_says_what_would() -> None:
    ended = run("plan", *PAIR[:4], "--gpus", "h100", *SHORT)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "slipstream: 1 session of 4096 tokens: no place holds that; what would fit: "
        "--target-dtype int4 or --gpus 4xh100"
    )
    assert "1 x h100, shared" in ended.stdout


def test_a_damaged_gguf_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(20))
    ended = run("plan", *PAIR, "--target", str(path))
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert str(path) in ended.stderr and len(ended.stderr.splitlines()) == 1
