"""Values of the chart: their defaults, and the places of the manifests where they go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tools.chart.merging import ABSENT, Either, Node, When
from tools.chart.rendering import COMPONENTS, Key
from tools.chart.writing import Given, GivenOr, Lines, Structure, Text, condition, literal

WORKLOADS = ("orchestrator", "verifier", "draft", "gateway")
HOST = "slipstream.example"
_RUNBOOKS = "docs/alerts.md#"
_STORAGE = {"learnt": "orchestrator.storage", "cache": "verifier.cacheStorage", "draft-cache": "draft.cacheStorage"}
"""The value that has the size of each claim, by the claim's name."""


def with_values(key: Key, tree: dict[str, Any]) -> dict[str, Node]:
    """Return an object's tree with the values in their places."""
    kind, name = key
    tree["metadata"]["namespace"] = Text("{{ .Release.Namespace }}")
    if kind == "ConfigMap":
        tree = {**tree, "data": _settings(name, tree["data"])}
    if kind in ("Deployment", "StatefulSet"):
        tree = {**tree, "spec": _workload(name, tree["spec"])}
    if kind == "PersistentVolumeClaim":
        tree = {**tree, "spec": _claim(name, tree["spec"])}
    if kind == "Ingress":
        tree["spec"]["ingressClassName"] = Text("{{ .Values.ingress.className }}")
    if kind in ("HTTPRoute", "GRPCRoute"):
        tree["spec"]["parentRefs"] = Structure(".Values.routes.parentRefs")
    return {part: _each(node, _scalars) for part, node in tree.items()}


def _settings(name: str, data: Mapping[str, Node]) -> Lines:
    """Return the lines of a ConfigMap: the manifests' settings, then the user's."""
    lines = ["{{- $settings := dict }}"]
    for setting, node in data.items():
        lines += _setting(setting, node)
    owner = name.removesuffix("-settings")
    given = "$.Values.monitoring.settings" if owner == "telemetry" else f"$.Values.{owner}.settings"
    lines.append(f"{{{{- range $name, $value := {given} }}}}{{{{ $_ := set $settings $name (toString $value) }}}}")
    return Lines((*lines, "{{- end }}", "{{- toYaml $settings | nindent 2 }}"))


def _setting(name: str, node: Node) -> list[str]:
    match node:
        case When(components, inner):
            return [f"{{{{- if {condition(components)} }}}}", *_setting(name, inner), "{{- end }}"]
        case Either(cases, otherwise):
            lines = _setting(name, otherwise)
            for component, inner in cases:
                lines += [f"{{{{- if {condition((component,))} }}}}", *_setting(name, inner), "{{- end }}"]
            return lines
        case _:
            return [f"{{{{- $_ := set $settings {literal(name)} {literal(node)} }}}}"]


def _workload(name: str, spec: dict[str, Node]) -> dict[str, Node]:
    template = spec["template"]
    pod = template["spec"]
    (container,) = (each for each in pod["containers"] if each["name"] == name)
    tag = "{{ .Values.images.tag | default .Chart.AppVersion }}"
    container["image"] = Text(f"{{{{ .Values.images.registry }}}}{{{{ .Values.{name}.image }}}}:{tag}")
    container["resources"] = Structure(f".Values.{name}.resources")
    container["volumeMounts"] = [*container["volumeMounts"], Given(f".Values.{name}.volumeMounts")]
    pod["volumes"] = [*pod["volumes"], Given(f".Values.{name}.volumes")]
    for extra in ("nodeSelector", "tolerations"):
        pod[extra] = Given(f".Values.{name}.{extra}")
    settings = f'{{{{ include (print $.Template.BasePath "/{name}-settings.yaml") . | sha256sum }}}}'
    template["metadata"]["annotations"] = {"checksum/settings": Text(settings)}
    replicas = _replaced(spec["replicas"], lambda node: GivenOr(f".Values.{name}.replicas", node))
    claims = spec.get("volumeClaimTemplates")
    if claims is not None:
        spec["volumeClaimTemplates"] = _replaced(
            claims, lambda node: [{**claim, "spec": _claim(claim["metadata"]["name"], claim["spec"])} for claim in node]
        )
    return {**spec, "replicas": replicas}


def _claim(name: str, spec: dict[str, Node]) -> dict[str, Node]:
    size = Text(f"{{{{ .Values.{_STORAGE[name]} }}}}")
    return {
        **spec,
        "resources": {"requests": {"storage": size}},
        "storageClassName": GivenOr(".Values.storageClassName", ABSENT),
    }


def _replaced(node: Node, replace: Callable[[Node], Node]) -> Node:
    """Replace a node, or what a condition around it holds."""
    return When(node.components, replace(node.node), node.negated) if isinstance(node, When) else replace(node)


def _each(node: Node, replace: Callable[[Node], Node]) -> Node:
    """Replace every scalar of a tree."""
    match node:
        case dict():
            return {key: _each(value, replace) for key, value in node.items()}
        case list():
            return [_each(item, replace) for item in node]
        case When(components, inner, negated):
            return When(components, _each(inner, replace), negated)
        case Either(cases, otherwise):
            replaced = tuple((component, _each(inner, replace)) for component, inner in cases)
            return Either(replaced, _each(otherwise, replace))
        case _:
            return replace(node)


def _scalars(node: Node) -> Node:
    """Put values into the scalars that have the same meaning everywhere."""
    if node == HOST:
        return Text("{{ .Values.host }}")
    if node == "ingress-tls":
        return Text("{{ .Values.ingress.secretName }}")
    if isinstance(node, str) and node.startswith(_RUNBOOKS):
        return Text(f"{{{{ .Values.monitoring.runbooks }}}}{node}")
    return node


def defaults(base: Mapping[Key, Any]) -> dict[str, Any]:
    """Return the content of values.yaml. Sizes are those of the base."""
    values: dict[str, Any] = {
        "host": HOST,
        "images": {"registry": "", "tag": ""},
        "storageClassName": "",
    }
    for name in WORKLOADS:
        pod = _pod(base, name)
        (container,) = (each for each in pod["containers"] if each["name"] == name)
        values[name] = {
            "image": container["image"].partition(":")[0],
            "replicas": None,
            "settings": {},
            "resources": container["resources"],
            "nodeSelector": {},
            "tolerations": [],
            "volumes": [],
            "volumeMounts": [],
        }
    values["orchestrator"]["storage"] = "1Gi"
    values["verifier"]["cacheStorage"] = "40Gi"
    values["draft"]["cacheStorage"] = "10Gi"
    values |= {name: {"enabled": False} for name in COMPONENTS}
    values["ingress"] |= {"className": "nginx", "secretName": "ingress-tls"}
    values["routes"] |= {"parentRefs": [{"name": "public", "namespace": "gateways"}]}
    values["monitoring"] |= {"settings": {}, "runbooks": ""}
    return values


def _pod(base: Mapping[Key, Any], name: str) -> Any:
    kind = "StatefulSet" if ("StatefulSet", name) in base else "Deployment"
    return base[kind, name]["spec"]["template"]["spec"]
