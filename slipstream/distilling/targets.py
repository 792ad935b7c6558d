"""Tells whether a model is the target of collected positions."""

from __future__ import annotations

from pathlib import Path

from slipstream.distilling.errors import DistilError
from slipstream.distilling.records import TargetFacts
from slipstream.engine.arithmetic import SCHEME
from slipstream.engine.checkpoint import directory_of, weight_files
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.gguf_file import fingerprint_of, shards_of
from slipstream.home import expanded
from slipstream.hosting.tokenizer_files import embedded_directory, is_gguf


def sampled_digest(model: str) -> str:
    """Return a sha256 over samples of the files of a model's weights. It is empty if they are not
    on this machine, cannot be read, or are no safetensors or GGUF files.

    Unlike the fingerprint of a served model it is the same for any dtype and device.
    """
    if model.startswith(SCHEME):
        return ""
    try:
        if is_gguf(model):
            return fingerprint_of(shards_of(expanded(model)), [])
        directory = embedded_directory("target") if model == "embedded" else directory_of(model, weights=False)
        return fingerprint_of(weight_files(directory, model), [])
    except (UnsupportedModelError, OSError, ValueError):  # ValueError: an empty file
        return ""


def difference(model: str, facts: TargetFacts) -> str:
    """Return why a model is not the target of ``facts``; empty if it is. Where the weights of
    either are not known, the last part of the name decides."""
    own = sampled_digest(model)
    if own and facts.sampled_digest:
        return "" if own == facts.sampled_digest else "their weights differ"
    name = "embedded-target" if model == "embedded" else model
    return "" if Path(name).name == Path(facts.name).name else "by its name"


def refuse_other_target(model: str, facts: TargetFacts, data: str) -> None:
    """Raise DistilError unless a model is the target of the data."""
    if why := difference(model, facts):
        raise DistilError(
            f"--target {model} is not the model whose answers --data {data} holds: {why}, that is {facts.name}. Name that "
            "one, or collect the answers of this one. --any-target trains on them all the same; this one may accept less of "
            "the draft"
        )
