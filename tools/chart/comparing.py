"""The chart as Helm renders it, compared with what Kustomize renders."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.chart.rendering import COMPONENTS, Key, objects, render
from tools.deploy_tools import run_tool

_UNORDERED = ("volumes", "volumeMounts")
"""Lists whose order means nothing."""


def differences(chart: Path) -> list[str]:
    """Return how the two differ: without components, with each of them alone, and with all."""
    cases: list[tuple[str, ...]] = [(), *((name,) for name in COMPONENTS), COMPONENTS]
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for components in cases:
            output = Path(directory) / "rendered"
            flags = [f"--set={name}.enabled=true" for name in components]
            command: list[str | Path] = ["template", "slipstream", chart, "--namespace", "slipstream", *flags]
            report = run_tool(chart, "helm", "helm", *command, output=output)
            said = ", ".join(components) or "no component"
            found += [f"with {said}: {fault}" for fault in report.faults]
            if not report.faults:
                found += [f"with {said}: {each}" for each in compared(objects(output.read_text()), render(components))]
    return found


def compared(own: Mapping[Key, Any], kustomized: Mapping[Key, Any]) -> list[str]:
    """Return the objects that differ. Helm makes no namespace object, and has a checksum of
    settings where Kustomize has it in their name."""
    wanted = {key: comparable(tree) for key, tree in kustomized.items() if key[0] != "Namespace"}
    got = {key: comparable(tree) for key, tree in own.items()}
    return [f"{' '.join(key)} differs" for key in sorted({*wanted, *got}) if wanted.get(key) != got.get(key)]


def comparable(node: Any) -> Any:
    """Return a tree without checksums of settings, and with lists in one order where order means
    nothing."""
    if isinstance(node, list):
        return [comparable(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: comparable(value) for key, value in node.items() if key != "checksum/settings"}
    for key in _UNORDERED:
        if key in kept:
            kept[key] = sorted(kept[key], key=_order)
    return {key: value for key, value in kept.items() if not (key == "annotations" and value == {})}


def _order(item: Mapping[str, Any]) -> list[str]:
    return [str(item.get("mountPath", "")), str(item.get("name", ""))]
