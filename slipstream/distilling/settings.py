"""Settings of a distillation: from flags and, with ``--config``, from a YAML file with the same
names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from slipstream.distilling.errors import DistilError
from slipstream.distilling.option_texts import TEXTS
from slipstream.given_settings import sentences
from slipstream.home import expanded


def _option(name: str, default: Any = ..., **bounds: Any) -> Any:
    return Field(default, description=TEXTS[name], **bounds)


class DistilSettings(BaseSettings):
    """Settings of ``slipstream distill``. Read once, in ``__main__``."""

    model_config = SettingsConfigDict(
        frozen=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_prog_name="slipstream distill",
        env_prefix="SLIPSTREAM_DISTILL_",
        extra="forbid",
    )

    config: str = _option("config", "")
    target: str = _option("target")
    draft: str = _option("draft")
    data: str = _option("data")
    out: str = _option("out")
    any_target: bool = _option("any-target", False)
    device: str = _option("device", "cpu")
    threads: int = _option("threads", 0, ge=0)
    precision: Literal["auto", "float32", "bfloat16"] = _option("precision", "auto")
    temperature: float = _option("temperature", 0.8, ge=0, le=2)
    kl: float = _option("kl", 0.5, ge=0, le=100)
    held_out: float = _option("held-out", 0.1, gt=0, lt=1)
    epochs: int = _option("epochs", 3, ge=1, le=10_000)
    learning_rate: float = _option("learning-rate", 1e-4, gt=0, le=1)
    optimizer: Literal["adamw", "muon"] = _option("optimizer", "adamw")
    weight_decay: float = _option("weight-decay", 0.01, ge=0, le=1)
    batch_tokens: int = _option("batch-tokens", 4096, ge=1)
    max_length: int = _option("max-length", 2048, ge=2)
    lora_rank: int = _option("lora-rank", 0, ge=0, le=1024)
    checkpoint_seconds: float = _option("checkpoint-seconds", 60, ge=0)
    seed: int = _option("seed", 0, ge=0, lt=2**32)

    @property
    def uses_bfloat16(self) -> bool:
        """True if forwards multiply in bfloat16."""
        return self.precision == "bfloat16" or (self.precision == "auto" and self.device.startswith("cuda"))

    @field_validator("target", "draft", "data", "out")
    @classmethod
    def _not_empty(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must name a folder")
        return value


def read_settings(arguments: Sequence[str]) -> DistilSettings:
    """Return the settings of a command line. DistilError names a wrong one; exits for --help."""
    try:
        return DistilSettings(_cli_parse_args=[*arguments], **_from_file(arguments))
    except ValidationError as error:
        raise DistilError(sentences(error)) from error


def as_yaml(settings: DistilSettings) -> str:
    """Return the settings as a YAML file that ``--config`` reads."""
    return str(yaml.safe_dump(settings.model_dump(exclude={"config"}), sort_keys=False, allow_unicode=True))


def _from_file(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values of the file that ``--config`` names. Its keys may have hyphens."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", default="")
    path = parser.parse_known_args(arguments)[0].config
    if not path:
        return {}
    try:
        values = yaml.safe_load(expanded(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DistilError(f"--config {path} cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a day such as 2026-02-30
        raise DistilError(f"--config {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise DistilError(f"--config {path} must map names of flags to values, such as target: org/name")
    named = {str(name).replace("-", "_"): value for name, value in values.items() if name != "config"}
    if unknown := [name for name in named if name not in DistilSettings.model_fields]:
        raise DistilError(f"--config {path} has {unknown[0]}, which is no flag; --help names them")
    return named
