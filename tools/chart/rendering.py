"""Objects that Kustomize renders of the base with some of the components."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tools.deploy_tools import ROOT, run_tool

KUBERNETES = ROOT / "deploy" / "kubernetes"
COMPONENTS = ("postgresql", "caches", "autoscaling", "ingress", "routes", "monitoring", "tls", "access")
"""The components that a chart can turn on, in the order in which Kustomize has to apply them."""

Key = tuple[str, str]
"""Kind and name of an object."""

_HASHED = re.compile(r"^([a-z]+-settings)-[0-9a-z]{10}$")


class RenderingError(Exception):
    """Kustomize could not render."""


def render(components: Iterable[str] = ()) -> dict[Key, Any]:
    """Return the objects of the base with some components. Names of ConfigMaps are without the hash
    that Kustomize appends. RenderingError."""
    chosen = set(components)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory).resolve()
        listed = [KUBERNETES / "components" / name for name in COMPONENTS if name in chosen]
        content = {
            "namespace": "slipstream",
            "resources": [os.path.relpath(KUBERNETES / "base", folder)],
            "components": [os.path.relpath(path, folder) for path in listed],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
        output = folder / "rendered"
        report = run_tool(KUBERNETES, "kustomize", "kubectl", "kustomize", folder, output=output)
        if report.faults:
            raise RenderingError("; ".join(report.faults))
        return objects(output.read_text())


def objects(text: str) -> dict[Key, Any]:
    """Return the objects of some manifests by kind and name."""
    documents = [_without_hashes(document) for document in yaml.safe_load_all(text) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def _without_hashes(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_hashes(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_without_hashes(item) for item in node]
    return _HASHED.sub(r"\1", node) if isinstance(node, str) else node
