"""A draft is trained on its target's records, and the training can be stopped, resumed and read."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from safetensors.torch import load_file

from slipstream.distilling.asked import note_asked
from slipstream.distilling.distillation import Result, distil
from slipstream.distilling.errors import DistilError
from slipstream.distilling.option_texts import TEXTS
from slipstream.distilling.records import RecordsError
from slipstream.distilling.settings import DistilSettings, as_yaml, read_settings
from slipstream.distilling.table import table
from slipstream.distilling.watch import StoppedError, Watch
from slipstream.engine.checkpoint import check_config, check_weights
from slipstream.engine.errors import UnsupportedModelError
from tests import collected, tiny_models

PROMPT_COUNT = 30


class Material(NamedTuple):
    """A target, a draft that agrees at times, and what was collected of the target."""

    target: Path
    draft: Path
    data: Path


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    folder = tmp_path_factory.mktemp("distilling")
    model = tiny_models.build("llama", hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    with torch.no_grad():
        model.lm_head.weight *= 4  # the target is sure of its next token
    target = tiny_models.save(model, folder / "target")
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 60) for _ in range(rng.randint(3, 6))] for _ in range(PROMPT_COUNT)]
    records = [collected.record_of(model, prompt, 10) for prompt in prompts]
    data = collected.write(folder / "data", target, records)
    draft = tiny_models.save(tiny_models.perturbed(model, 0.2), folder / "draft")
    return Material(target, draft, data)


def settings(material: Material, new: Path, **changes: Any) -> DistilSettings:
    given: dict[str, Any] = {name: str(path) for name, path in material._asdict().items()}
    given |= {"out": str(new), "learning_rate": 3e-3, "epochs": 6, "batch_tokens": 100, "held_out": 0.3} | changes
    return DistilSettings(**given)


class Impatient:
    """A user who stops the training after so many steps, once it is told that they begin."""

    def __init__(self, step_count: int) -> None:
        self.told: list[str] = []
        self._left = step_count

    def tell(self, line: str) -> None:
        self.told.append(line)

    def stopped(self) -> bool:
        self._left -= any("acceptance before" in line for line in self.told)
        return self._left <= 0


def stop_after(settings: DistilSettings, step_count: int) -> list[str]:
    """Train until a user stops it, and return what the user was told."""
    user = Impatient(step_count)
    with pytest.raises(StoppedError):
        distil(settings, user.tell, user.stopped)
    return user.told


def train(material: Material, out: Path, **changes: Any) -> Result:
    return distil(settings(material, out, **changes), lambda _: None)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_equal(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, weight in first.items():
        assert torch.equal(weight, second[name]), name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_target_accepts_more_of_the_new_draft(material: Material, tmp_path: Path, optimizer: str) -> None:
    result = train(material, tmp_path / "new", optimizer=optimizer)
    assert result.after.sampled.token > result.before.sampled.token
    assert result.after.sampled.by_position[3] > result.before.sampled.by_position[3]
    assert [path.name for path in tmp_path.iterdir()] == ["new"], "nothing is left beside it"
    check_config(tmp_path / "new", "it")
    assert check_weights(tmp_path / "new", "it")
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "new" / name).read_bytes() == (material.draft / name).read_bytes()


def test_the_table_says_whether_enough_was_held_out(material: Material, tmp_path: Path) -> None:
    for share, is_said in ((0.1, True), (0.5, False)):
        result = train(material, tmp_path / str(share), epochs=1, held_out=share)
        assert result.after.row_count == share * PROMPT_COUNT * 10
        said = table(result.before, result.after, result.data, 0.8)
        assert ("So few tokens say little" in said) is is_said


def test_the_table_names_the_temperatures_of_its_rows(material: Material, tmp_path: Path) -> None:
    result = train(material, tmp_path / "new", epochs=1, temperature=0.0)
    rows = table(result.before, result.after, result.data, 0.0).splitlines()[4:]
    assert [row.split()[:3] for row in rows[:4]] == [
        ["temperature", at, when] for at in ("0", "1") for when in ("before", "after")
    ]
    assert json.loads((tmp_path / "new" / "lineage.json").read_text())["acceptance"]["sampled_temperature"] == 1.0


def test_its_lineage_names_all_that_it_was_made_from(material: Material, tmp_path: Path) -> None:
    result = train(material, tmp_path / "new", epochs=1)
    data = shutil.copytree(material.data, tmp_path / "data")
    note_asked(data, {"sampling": {"temperature": 0.8}, "seed": 3})
    again = train(material._replace(draft=tmp_path / "new", data=data), tmp_path / "newer", epochs=1)
    said = json.loads((tmp_path / "newer" / "lineage.json").read_text())
    assert said["target"]["weights_fingerprint"] == collected.WEIGHTS
    assert (said["target"]["name"], said["target"]["given_as"]) == ("a target", str(material.target))
    assert "on the answers of `a target`" in (tmp_path / "newer" / "README.md").read_text()
    assert said["data"]["asked"] == [{"sampling": {"temperature": 0.8}, "seed": 3}]
    assert [shard["name"] for shard in said["data"]["shards"]] == ["000001.safetensors"]
    assert said["data"]["shards"][0]["row_count"] == PROMPT_COUNT * 10
    assert said["acceptance"]["after"]["sampled"]["by_position"] == again.after.sampled.by_position
    first = json.loads((tmp_path / "new" / "lineage.json").read_text())
    assert said["base_draft"]["lineage"] == first and first["data"]["asked"] == []
    assert said["base_draft"]["weights_sha256"] == first["draft"]["weights_sha256"]
    assert f"{result.after.row_count:,} tokens" in (tmp_path / "new" / "README.md").read_text()
    kept = read_settings(["--config", str(tmp_path / "new" / "distill.yaml"), "--out", str(tmp_path / "third")])
    assert kept.out == str(tmp_path / "third") and kept.epochs == 1


@pytest.mark.parametrize("changes", [{}, {"optimizer": "muon"}, {"lora_rank": 4, "learning_rate": 0.02}])
def test_a_stopped_training_goes_on_to_equal_weights(
    material: Material, tmp_path: Path, changes: dict[str, Any]
) -> None:
    train(material, tmp_path / "whole", **changes)
    for steps in (1, 8):
        stop_after(settings(material, tmp_path / "new", **changes), steps)
        assert not (tmp_path / "new").exists()
    told: list[str] = []
    distil(settings(material, tmp_path / "new", **changes), told.append)
    assert "resumed after step 9" in told
    assert_equal(tmp_path / "whole", tmp_path / "new")


def test_a_training_stops_while_it_reads_or_measures_and_loses_no_step(material: Material, tmp_path: Path) -> None:
    train(material, tmp_path / "whole", epochs=1)
    given = settings(material, tmp_path / "new", epochs=1)
    assert stop_after(given, 0) == [], "it stops before its first shard"
    assert not (tmp_path / "new.unfinished").exists()
    told: list[str] = []
    with pytest.raises(StoppedError):
        distil(given, told.append, lambda: len(told) == 1)
    assert "to train on" in told[-1], "it stops before its first measurement"
    told.clear()
    asked = itertools.count()
    with pytest.raises(StoppedError):  # not where the training asks after its last step, but later
        distil(given, told.append, lambda: bool(told) and "step 4 of 4" in told[-1] and next(asked) > 0)
    assert not (tmp_path / "new").exists()
    distil(given, told.append)
    assert told[-1] == "resumed after step 4"
    assert_equal(tmp_path / "whole", tmp_path / "new")


def test_a_long_task_tells_how_far_it_is() -> None:
    told: list[str] = []
    assert [*Watch(told.append, every_seconds=0).each("abc", 3, "reading: shard")] == ["a", "b", "c"]
    assert told == ["reading: shard 0 of 3", "reading: shard 1 of 3", "reading: shard 2 of 3"]
    assert [*Watch(told.append).each("abc", 3, "reading")] and len(told) == 3


def test_a_seed_gives_equal_weights_and_another_one_gives_others(material: Material, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        train(material, tmp_path / name, seed=seed, epochs=2)
    assert_equal(tmp_path / "one", tmp_path / "same")
    key = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(weights(tmp_path / "one")[key], weights(tmp_path / "other")[key])


def test_adapters_are_merged_into_plain_weights(material: Material, tmp_path: Path) -> None:
    result = train(material, tmp_path / "new", lora_rank=8, learning_rate=0.02)
    loaded = train(material._replace(draft=tmp_path / "new"), tmp_path / "newer", epochs=1)
    assert loaded.before == result.after != result.before
    base, new = weights(material.draft), weights(tmp_path / "new")
    assert base.keys() == new.keys()
    changed = [name for name in base if not torch.equal(base[name], new[name])]
    assert changed and all(name.endswith("_proj.weight") for name in changed)
    assert check_weights(tmp_path / "new", "it")


@pytest.mark.parametrize("family", ["gpt2", "opt", "gemma2", "qwen2_moe"])
def test_any_draft_of_transformers_is_trained(material: Material, tmp_path: Path, family: str) -> None:
    draft = tiny_models.save(tiny_models.build(family), tmp_path / "draft")
    result = train(material._replace(draft=draft), tmp_path / "new", epochs=1)
    assert result.after != result.before


def test_what_cannot_be_trained_is_refused_by_name(material: Material, tmp_path: Path) -> None:
    other = shutil.copytree(material.draft, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["merges"].pop()
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    records = [collected.record_of(tiny_models.build("llama"), [5, 6], 4)]
    alone = collected.write(tmp_path / "alone", material.target, records)
    secret = collected.write(tmp_path / "secret", material.target, records, with_text=False)
    huge = tiny_models.build("llama")
    with torch.no_grad():
        huge.lm_head.weight *= 1e38
    endless = tiny_models.save(huge, tmp_path / "endless")
    (tmp_path / "there").mkdir()
    for changes, error, named in (
        ({"draft": str(other)}, DistilError, "--draft .*other has another tokenizer"),
        ({"target": str(other)}, DistilError, "--target .*other has another tokenizer"),
        ({"draft": str(tmp_path / "none")}, UnsupportedModelError, "no model directory"),
        ({"data": str(tmp_path / "none")}, RecordsError, "does not exist"),
        ({"data": str(tmp_path / "there")}, RecordsError, "no shards"),
        ({"data": str(alone)}, DistilError, "one prompt only"),
        ({"data": str(secret)}, RecordsError, "without text"),
        ({"max_length": 2}, DistilError, "no collected position in the first 2 tokens"),
        ({"out": str(tmp_path / "there")}, DistilError, "exists already"),
        ({"out": "/proc/new"}, DistilError, "cannot be written"),
        ({"out": "."}, DistilError, r"--out \. exists already"),
        ({"out": "/"}, DistilError, "--out / exists already"),
        ({"data": "~no-such-user/data"}, RecordsError, "~no-such-user/data is no folder"),
        ({"draft": str(tmp_path / "there")}, UnsupportedModelError, "there has no weights: it needs model.safetensors"),
        ({"draft": str(endless)}, DistilError, "the gradient of step 1 is nan: lower --learning-rate"),
    ):
        with pytest.raises(error, match=named):
            distil(settings(material, tmp_path / "new", **changes), print)
        assert not (tmp_path / "new").exists() and not (tmp_path / "new.unfinished").exists()


def test_the_answers_of_another_target_are_trained_on_only_if_that_is_said(material: Material, tmp_path: Path) -> None:
    other = tiny_models.save(tiny_models.build("llama"), tmp_path / "other")
    with pytest.raises(DistilError, match=r"--target .*other is not the model whose answers .*: their weights differ"):
        train(material._replace(target=other), tmp_path / "new")
    moved = shutil.copytree(material.target, tmp_path / "moved")
    train(material._replace(target=moved), tmp_path / "new", epochs=1)
    train(material._replace(target=other), tmp_path / "newer", epochs=1, any_target=True)
    assert_equal(tmp_path / "new", tmp_path / "newer")
    said = json.loads((tmp_path / "newer" / "lineage.json").read_text())
    assert (said["target"]["given_as"], said["settings"]["any_target"]) == (str(other), True)


def test_one_out_has_one_training_at_a_time(material: Material, tmp_path: Path) -> None:
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        with pytest.raises(RecordsError, match=r"new.unfinished is being written by another process"):
            train(material, tmp_path / "new", draft=str(tmp_path / "none"))

    distil(settings(material, tmp_path / "new", epochs=1), tell)
    assert told and check_weights(tmp_path / "new", "it")


def test_only_the_owner_can_read_the_draft(material: Material, tmp_path: Path) -> None:
    stop_after(settings(material, tmp_path / "new"), 2)
    unfinished = tmp_path / "new.unfinished"
    assert unfinished.stat().st_mode & 0o777 == 0o700
    assert (unfinished / "state.pt").stat().st_mode & 0o777 == 0o600
    unfinished.chmod(0o755)
    with pytest.raises(RecordsError, match=r"new.unfinished has mode 755"):
        train(material, tmp_path / "new")
    unfinished.chmod(0o700)
    train(material, tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()} == {0o600}


def test_a_training_begun_with_other_values_is_not_resumed(material: Material, tmp_path: Path) -> None:
    stop_after(settings(material, tmp_path / "new"), 2)
    with pytest.raises(DistilError, match=r"begun with other values \(kl 0.5\)"):
        train(material, tmp_path / "new", kl=0.1)
    (tmp_path / "new.unfinished" / "state.pt").write_bytes(b"half")
    with pytest.raises(DistilError, match=r"state.pt is damaged: delete"):
        train(material, tmp_path / "new")


def test_a_stopped_training_goes_on_with_its_shards_while_others_are_collected(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = shutil.copytree(material.data, tmp_path / "data")
    train(material, tmp_path / "whole")
    monkeypatch.chdir(tmp_path)
    stop_after(settings(material, tmp_path / "new", data="data"), 8)
    shard = data / "000001.safetensors"
    newer = shutil.copy(shard, data / "000002.safetensors")
    shard.rename(tmp_path / "kept")
    with pytest.raises(DistilError, match=r"data/000001.safetensors is gone since the training began"):
        distil(settings(material, tmp_path / "new", data=str(data)), print)
    collected.write(data, material.target, [collected.record_of(tiny_models.build("llama"), [5, 6], 4)])
    (data / "000003.safetensors").replace(shard)
    with pytest.raises(DistilError, match=r"data/000001.safetensors has changed since the training began"):
        distil(settings(material, tmp_path / "new", data=str(data)), print)
    (tmp_path / "kept").replace(shard)
    told: list[str] = []
    distil(settings(material, tmp_path / "new", data=f"{data}/../data/"), told.append)
    assert "shards left out because they are newer: 1" in told[0] and Path(newer).exists()
    assert_equal(tmp_path / "whole", tmp_path / "new")


def test_settings_come_from_a_file_and_from_flags(tmp_path: Path) -> None:
    file = tmp_path / "distill.yaml"
    file.write_text("target: t\ndraft: d\ndata: x\nout: o\nlearning-rate: 1e-3\nepochs: 7\n")
    read = read_settings(["--config", str(file), "--epochs", "2"])
    assert (read.target, read.learning_rate, read.epochs) == ("t", 0.001, 2)
    assert yaml.safe_load(as_yaml(read))["epochs"] == 2
    assert "out: für\n" in as_yaml(read.model_copy(update={"out": "für"}))
    for text, named in (
        ("epochs: none", "--epochs should be a valid integer"),
        ("rate: 1", "has rate, which is no flag"),
        ("- 1", "must map names"),
        ("a: [", "is not YAML"),
        ("[" * 5000, "is not YAML"),
        ("epochs: 2026-02-30", "is not YAML"),
        ("_cli_parse_args: [--help]", "has _cli_parse_args, which is no flag"),
        ("-env-file: x", "has _env_file, which is no flag"),
    ):
        file.write_text(text)
        with pytest.raises(DistilError, match=named):
            read_settings(["--config", str(file)])
    with pytest.raises(DistilError, match="cannot be read"):
        read_settings(["--config", str(tmp_path / "none")])
    with pytest.raises(DistilError, match="--target is needed; --help explains it"):
        read_settings([])


def test_each_option_has_a_text_with_its_default() -> None:
    fields = DistilSettings.model_fields
    assert {name.replace("-", "_") for name in TEXTS} == fields.keys()
    for name, text in TEXTS.items():
        default = fields[name.replace("-", "_")].get_default()
        if name not in ("config", "target", "draft", "data", "out"):
            assert f"; default: {default}" in text, name
