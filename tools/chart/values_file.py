"""values.yaml with its comments, and the schema by which Helm refuses what no template reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

_COMMENTS = {
    "host": "the name at which components ingress and routes are reached",
    "images": "your registry, with a slash at its end; the tag is the chart's appVersion if it is empty",
    "storageClassName": "of every claim; empty for the cluster's default",
    "orchestrator": "each setting is a variable of the service: SLIPSTREAM_ORCHESTRATOR_DRAIN_SECONDS and so on",
    "verifier": "a target of yours: settings SLIPSTREAM_VERIFIER_MODEL=/models/target, with a volume and its mount",
    "postgresql": "several orchestrators over one PostgreSQL; needs the secret orchestrator-store",
    "caches": "what was compiled and downloaded outlives a pod",
    "autoscaling": "two to four verifiers; needs prometheus-adapter",
    "ingress": "for ingress-nginx",
    "routes": "for the Gateway API",
    "monitoring": "for a Prometheus operator in the namespace monitoring; runbooks is the address of this repository's files",
    "tls": "needs six secrets: deploy/kubernetes/components/tls/kustomization.yaml lists them",
    "access": "callers are known by tokens; needs the secret orchestrator-access",
}
_FREE = ("settings", "resources", "nodeSelector")
"""Mappings with keys of the user's."""


def values_text(values: Mapping[str, Any]) -> str:
    """Return values.yaml."""
    return "".join(_parts(values))


def _parts(values: Mapping[str, Any]) -> Iterator[str]:
    yield "# Made by tools/make_chart.py. Each component of deploy/kubernetes is a value here, with a word on what it needs.\n"
    for name, value in values.items():
        if name in _COMMENTS:
            yield f"# {_COMMENTS[name]}\n"
        yield yaml.dump({name: value}, Dumper=_Indented, sort_keys=False, width=120)


class _Indented(yaml.SafeDumper):
    """Writes lists further in than their key, as yamllint wants them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Begin a deeper level."""
        super().increase_indent(flow, False)


def schema_of(value: Any, name: str = "") -> dict[str, Any]:
    """Return a JSON schema of which a value is an example. It refuses a key that the value does not
    have."""
    match value:
        case bool():
            return {"type": "boolean"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array"}
        case None:
            return {"type": ["integer", "null"], "minimum": 1}
        case _ if name in _FREE:
            return {"type": "object"}
        case _:
            below = {key: schema_of(each, key) for key, each in value.items()}
            if not name:
                below["global"] = {"type": "object"}  # Helm adds it
            return {"type": "object", "properties": below, "additionalProperties": False}
