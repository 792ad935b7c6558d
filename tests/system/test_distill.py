"""``slipstream distill`` as its users run it: stopped by Ctrl-C, run again, its draft served."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from slipstream.cli.local import LocalServices, PairSettings
from slipstream.client import Client, Settings
from slipstream.hosting.tokenizer_files import embedded_directory
from tests import collected, tiny_models
from tests.commands import SLIPSTREAM, left_behind, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, a draft that agrees at times, and collected positions."""
    folder = tmp_path_factory.mktemp("distill")
    model = tiny_models.build("llama", hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    target = tiny_models.save(model, folder / "target")
    rng = random.Random(1)
    prompts = [[rng.randrange(3, 60) for _ in range(4)] for _ in range(12)]
    collected.write(folder / "data", target, [collected.record_of(model, prompt, 8) for prompt in prompts])
    tiny_models.save(tiny_models.perturbed(model, 0.05), folder / "draft")
    return folder


def options(folder: Path, out: str, *more: str) -> list[str]:
    places = [f"--{name}={folder / name}" for name in ("target", "draft", "data")]
    return ["distill", *places, f"--out={folder / out}", "--threads=1", "--batch-tokens=50", *more]


@pytest.mark.essential
def test_a_training_stopped_by_ctrl_c_goes_on_and_its_draft_is_served(folder: Path) -> None:
    command = options(folder, "new", "--epochs=9999")
    with subprocess.Popen([*SLIPSTREAM, *command], stderr=subprocess.PIPE, text=True) as training:
        assert training.stderr is not None
        shown = ""
        while "step " not in shown and (line := training.stderr.readline()):
            shown += line
        assert "step 1 of" in shown, shown
        training.send_signal(signal.SIGINT)
        shown = training.stderr.read()
        assert shown.startswith("stopping; ") or "\nstopping; " in shown
        assert "the same command goes on" in shown
    assert training.returncode == 130
    assert not (folder / "new").exists() and (folder / "new.unfinished" / "state.pt").exists()
    other = run(*options(folder, "new", "--epochs=3"))
    assert other.returncode == 1 and "begun with other values (epochs 9999)" in other.stderr
    ended = run(*options(folder, "newer", "--epochs=3"))
    assert ended.returncode == 0, ended.stderr
    assert "epochs: 3" in ended.stdout and "temperature 0   after" in ended.stdout
    assert not left_behind()
    texts = []
    for draft in (str(folder / "newer"), ""):
        pair = PairSettings(target=str(folder / "target"), draft=draft, dtype="float32")
        settings = Settings(temperature=0, max_token_count=24, draft_length=4 if draft else 0)
        with LocalServices(pair) as local, Client(local.orchestrator_address) as client:
            texts.append(client.generate("a prompt", settings=settings).wait())
    assert texts[0].text == texts[1].text
    assert texts[0].draft_token_count > 0


def test_the_target_of_collected_answers_is_known_by_its_weights(folder: Path) -> None:
    (folder / "prompts.txt").write_text("".join(f"What does os.path.{name} do?\n" for name in ("join", "split")))
    prompts, data = f"--prompts={folder / 'prompts.txt'}", folder / "answers"
    ended = run("distill", "collect", prompts, "--target=embedded", f"--out={data}", "--max-tokens=8")
    assert ended.returncode == 0, ended.stderr
    other = shutil.copytree(embedded_directory("target"), folder / "other")
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-4096:] = bytes(4096)
    (other / "model.safetensors").write_bytes(weights)
    command = ["distill", "--draft=embedded", f"--data={data}", f"--out={folder / 'of-answers'}", "--epochs=1"]
    ended = run(*command, f"--target={other}")
    assert ended.returncode == 1
    assert "other is not the model whose answers --data" in ended.stderr and "that is embedded-target" in ended.stderr
    for given in (["--target=embedded"], [f"--target={other}", "--any-target", f"--out={folder / 'of-others'}"]):
        ended = run(*command, *given)
        assert ended.returncode == 0, ended.stderr
        assert f"any_target: {str('--any-target' in given).lower()}" in ended.stdout


def test_a_full_disk_is_named_and_leaves_no_folder(folder: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    command = [*SLIPSTREAM, *options(folder, "large", "--epochs=1")]
    ended = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=240, check=False)
    assert ended.returncode == 1
    assert "large cannot be written: " in ended.stderr and "Traceback" not in ended.stderr
    assert "is the disk full?" in ended.stderr or "File too large" in ended.stderr
    assert not (folder / "large").exists()


def test_wrong_options_are_named_in_one_line(folder: Path) -> None:
    for command, named in (
        (["distill"], "--target is needed"),
        (options(folder, "new2", "--epochs=0"), "--epochs should be greater than or equal to 1, but is '0'"),
        (options(folder, "new2", "--optimizer=sgd"), "--optimizer should be 'adamw' or 'muon'"),
        (options(folder, "data"), "exists already"),
        (options(folder, "new2", "--device=cuda"), "cuda"),
    ):
        ended = run(*command)
        assert ended.returncode == 1, ended.stderr
        assert named in ended.stderr and "Traceback" not in ended.stderr
    assert not (folder / "new2").exists()
