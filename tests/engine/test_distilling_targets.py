"""Whether a model is the target of collected positions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.distilling.errors import DistilError
from slipstream.distilling.records import Shard, TargetFacts, encoded, read_shards
from slipstream.distilling.targets import difference, refuse_other_target, sampled_digest
from tests.unit.test_distilling_records import FACTS, a_record, written


def model(folder: Path, weights: bytes = bytes(5000), file: str = "model.safetensors") -> str:
    folder.mkdir(parents=True)
    (folder / file).write_bytes(weights)
    return str(folder)


def facts_of(name: str) -> TargetFacts:
    return replace(FACTS, name=name, sampled_digest=sampled_digest(name))


def test_a_target_is_known_by_its_weights_wherever_it_lies(tmp_path: Path) -> None:
    facts = facts_of(model(tmp_path / "first" / "target"))
    assert difference(model(tmp_path / "moved"), facts) == ""
    other = model(tmp_path / "second" / "target", bytes(4999) + b"1")
    assert difference(other, facts) == "their weights differ"
    with pytest.raises(DistilError) as refused:
        refuse_other_target(other, facts, "data")
    assert str(refused.value).startswith(f"--target {other} is not the model whose answers --data data holds")
    assert facts.name in str(refused.value) and "--any-target trains on them all the same" in str(refused.value)


def test_a_gguf_file_is_known_by_its_weights(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF" + name[:1].encode() * 100)
    facts = facts_of(str(tmp_path / "a.gguf"))
    assert facts.sampled_digest and difference(facts.name, facts) == ""
    assert difference(str(tmp_path / "b.gguf"), facts) == "their weights differ"


def test_where_weights_are_not_here_the_last_part_of_the_name_decides(tmp_path: Path) -> None:
    empty = model(tmp_path / "here" / "target", file="config.json")
    assert sampled_digest(empty) == sampled_digest(str(tmp_path / "none")) == sampled_digest("arithmetic:ends=0") == ""
    assert sampled_digest(model(tmp_path / "cut" / "target", b"")) == "", "no safetensors file is empty"
    whole = facts_of(model(tmp_path / "there" / "target"))
    assert difference(empty, whole) == ""
    assert difference(empty, replace(whole, name="org/other")) == "by its name"
    assert difference(whole.name, replace(whole, sampled_digest="")) == ""
    assert difference("embedded", replace(FACTS, name="embedded-target")) == ""


def test_shards_of_a_release_without_digests_are_of_the_same_target(tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    old = written(folder, a_record(1))
    assert b"sampled_digest" in encoded(Shard(FACTS, [a_record(1)], 0.0, 0.0), with_text=True)
    old.write_bytes(old.read_bytes().replace(b'"sampled_digest"', b'"another_digest"'))
    written(folder, a_record(2), facts=replace(FACTS, sampled_digest="d" * 64))
    assert len([*read_shards(folder)]) == 2
