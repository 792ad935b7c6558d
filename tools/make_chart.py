"""Write the Helm chart in deploy/helm/slipstream from deploy/kubernetes.

    python tools/make_chart.py           write it again
    python tools/make_chart.py --check   compare it with what would be written and rendered

The base becomes the templates, and each component a value that turns it on. kubectl renders both;
`make check` brings it, and helm, for the comparison.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tools.chart.comparing import differences
from tools.chart.merging import ABSENT, Node, When, merge
from tools.chart.rendering import COMPONENTS, Key, RenderingError, render
from tools.chart.settings import defaults, with_values
from tools.chart.values_file import schema_of, values_text
from tools.chart.writing import condition, write
from tools.deploy_tools import ROOT, version

CHART = ROOT / "deploy" / "helm" / "slipstream"
_HEAD = "{{- /* Made of deploy/kubernetes by tools/make_chart.py, and compared with it by make check. */ -}}\n"
_TOGETHER = {"monitoring": ("tls",), "ingress": ("tls",)}
"""Components that change what another one adds."""
_FILES = {
    "Ingress": "ingress",
    "HTTPRoute": "routes",
    "GRPCRoute": "routes",
    "PodMonitor": "monitoring",
    "PrometheusRule": "monitoring",
    "HorizontalPodAutoscaler": "autoscaling",
    "NetworkPolicy": "network-policies",
    "PersistentVolumeClaim": "caches",
}


def merged(base: Mapping[Key, Any]) -> dict[Key, Node]:
    """Return every object of the chart as one tree."""
    alone = {name: render([name]) for name in COMPONENTS}
    keys = dict.fromkeys(key for objects in (base, *alone.values()) for key in objects)
    both = {name: {other: render([name, other]) for other in others} for name, others in _TOGETHER.items()}
    found: dict[Key, Node] = {}
    for key in keys:
        variants = {name: objects.get(key, ABSENT) for name, objects in alone.items()}
        node = merge(base.get(key, ABSENT), variants, "/".join(key))
        if isinstance(node, When) and len(node.components) == 1 and node.components[0] in both:
            changed = {other: objects[key] for other, objects in both[node.components[0]].items()}
            node = When(node.components, merge(node.node, changed, "/".join(key)))
        found[key] = node
    return found


def file_of(key: Key) -> str:
    """Return the name of the template that has an object."""
    kind, name = key
    return _FILES.get(kind, name)


def templates(base: Mapping[Key, Any]) -> dict[str, str]:
    """Return the chart's templates by file name. Helm itself makes the namespace."""
    parts: dict[str, list[str]] = {}
    for key, node in merged(base).items():
        if key[0] == "Namespace":
            continue
        parts.setdefault(file_of(key), []).append("".join(_document(key, copy.deepcopy(node))))
    return {f"templates/{name}.yaml": _HEAD + "".join(texts) for name, texts in sorted(parts.items())}


def _document(key: Key, node: Node) -> Iterator[str]:
    if isinstance(node, When):
        yield f"{{{{- if {condition(node.components, node.negated)} }}}}\n"
        yield from _document(key, node.node)
        yield "{{- end }}\n"
    else:
        yield "---\n"
        yield write(with_values(key, node))


def chart() -> dict[str, str]:
    """Return every file of the chart by its path in it. RenderingError."""
    base = render()
    values = defaults(base)
    about = {
        "apiVersion": "v2",
        "name": "slipstream",
        "description": "Speculative decoding of language models across machines",
        "type": "application",
        "version": version(),
        "appVersion": version(),
    }
    return {
        "Chart.yaml": yaml.safe_dump(about, sort_keys=False),
        "values.yaml": values_text(values),
        "values.schema.json": json.dumps(schema_of(values), indent=2) + "\n",
        **templates(base),
    }


def faults() -> list[str]:
    """Return how the committed chart differs from what would be written, and from Kustomize."""
    try:
        wanted = chart()
    except RenderingError as error:
        return [str(error)]
    here = {str(path.relative_to(CHART)): path.read_text() for path in CHART.rglob("*") if path.is_file()}
    stale = sorted(name for name in {*wanted, *here} if wanted.get(name) != here.get(name))
    if stale:
        return [f"{', '.join(stale)}: not as deploy/kubernetes has it; run python tools/make_chart.py"]
    return differences(CHART)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    if parser.parse_args().check:
        if found := faults():
            sys.exit("\n".join(found))
        return
    wanted = chart()
    for path in CHART.rglob("*"):
        if path.is_file() and str(path.relative_to(CHART)) not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (CHART / name).parent.mkdir(parents=True, exist_ok=True)
        (CHART / name).write_text(text)


if __name__ == "__main__":
    main()
