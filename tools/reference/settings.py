"""The settings page: every flag and environment variable of the services and of the gateway."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from draft_service.settings import DraftSettings
from gateway.settings import GatewaySettings
from orchestrator.processes.settings import OrchestratorSettings
from tools.reference.markdown import cell, generated, table
from verifier_service.settings import VerifierSettings

_HEAD = """# Settings

Each service reads its settings once, when it starts. A setting is a flag or an environment
variable; the flag wins. `--help` prints the same list. The variable of `--kv-memory-mib` is
`SLIPSTREAM_VERIFIER_KV_MEMORY_MIB` for a verifier and `SLIPSTREAM_DRAFT_KV_MEMORY_MIB` for a draft.

Flags of a boolean take no value: `--insecure`, or `--no-insecure` over a variable that says true.
"""


def page() -> str:
    """Return the page."""
    return "".join(
        [
            generated("the pydantic settings classes"),
            _HEAD,
            "\n## The orchestrator\n\n`python -P -m orchestrator`; variables begin with `SLIPSTREAM_ORCHESTRATOR_`.\n\n",
            _settings([OrchestratorSettings]),
            "\n## The verifier and the draft\n\n`python -P -m verifier_service` and `python -P -m draft_service`; ",
            "variables begin with\n`SLIPSTREAM_VERIFIER_` and `SLIPSTREAM_DRAFT_`. ",
            "Only the verifier has `--heads`\nand the `--collect` and `--engine-` flags, ",
            "only the draft `--quantize` and `--target-tokenizer`.\n\n",
            _settings([VerifierSettings, DraftSettings]),
            "\n## The gateway\n\n`python -P -m gateway`; variables begin with `SLIPSTREAM_GATEWAY_`.\n\n",
            _settings([GatewaySettings]),
        ]
    )


def _settings(kinds: Sequence[type[BaseSettings]]) -> str:
    return table(["flag", "value", "default", "meaning"], _rows(kinds))


def _rows(kinds: Sequence[type[BaseSettings]]) -> Iterator[list[str]]:
    fields = {name: field for kind in reversed(kinds) for name, field in kind.model_fields.items()}
    for name, field in sorted(fields.items()):
        defaults = list(dict.fromkeys(_default(kind.model_fields[name]) for kind in kinds if name in kind.model_fields))
        yield [f"`--{name.replace('_', '-')}`", _kind(field), " or ".join(defaults), cell(field.description or "")]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default
    if default is None or default == "":
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else getattr(default, 'value', default)}`"


def _kind(field: FieldInfo) -> str:
    bounds = [f"{sign} {bound}" for sign, bound in _bounds(field)]
    return cell(", ".join([_named(field.annotation), *bounds]))


def _bounds(field: FieldInfo) -> Iterator[tuple[str, Any]]:
    for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
        for constraint in field.metadata:
            if hasattr(constraint, name):
                yield sign, getattr(constraint, name)


def _named(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_named(kind) for kind in get_args(annotation) if kind is not NoneType)
    values = getattr(annotation, "__members__", None)
    if values:
        return " or ".join(f"`{member.value}`" for member in values.values())
    return {"str": "text", "int": "whole number", "float": "number", "bool": "flag"}.get(annotation.__name__, "text")
