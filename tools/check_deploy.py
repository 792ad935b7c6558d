"""Check every file under deploy/ with the tools made for it, and against what the services know.

Prints a line for each file, and exits with 1 if any is at fault. `make check` sets the tools up
(deploy/requirements.txt). Tools that pip cannot bring (systemd-analyze, promtool, amtool) are used
if they are installed; otherwise a line says what was left out. With --write, the copies that
Kustomize needs within its own folder are written again.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from slipstream.rpc.channel import MAX_METADATA_BYTES, MOST_STREAMS
from tools.deploy_tools import ROOT, Fault, Report, name_of, result, run_tool, tell, version
from tools.make_chart import CHART
from tools.make_chart import faults as chart_faults

DEPLOY = ROOT / "deploy"
OVERLAYS = DEPLOY / "kubernetes" / "overlays"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
RULE = DEPLOY / "kubernetes" / "components" / "monitoring" / "prometheus-rule.yaml"

OTHER_SCHEMAS = {
    "GRPCRoute": "the Gateway API's",
    "HTTPRoute": "the Gateway API's",
    "LeaderWorkerSet": "the project's of that name, whose schema no pip package has",
    "PodMonitor": "the Prometheus operator's, whose schema no pip package has",
    "PrometheusRule": "likewise; its rules are those of deploy/prometheus, which promtool checks",
}
"""Kinds that kubernetes-validate cannot know, by the project that owns them."""

ACCESS = "SLIPSTREAM_ORCHESTRATOR_ACCESS"

SPARE_SECONDS = 10
"""Seconds that a service needs to end after its drain: last log lines, the last spans, the model
thread."""

Setting = Mapping[str, Any]


# --- what the services know


def settings_of(root: Path = ROOT) -> dict[str, Any]:
    """Return every environment variable that a service's settings read, with its default if that is
    a literal. They are read from the source, because an import would load torch."""
    listening = _fields(root / "slipstream/transport/settings.py", "ListenSettings")
    shared = listening | _fields(root / "slipstream/hosting/settings.py", "ModelServiceSettings")
    kinds = {
        "ORCHESTRATOR": listening | _fields(root / "orchestrator/processes/settings.py", "OrchestratorSettings"),
        "VERIFIER": shared | _fields(root / "verifier_service/settings.py", "VerifierSettings"),
        "DRAFT": shared | _fields(root / "draft_service/settings.py", "DraftSettings"),
        "GATEWAY": _fields(root / "gateway/settings.py", "GatewaySettings"),
    }
    return {
        f"SLIPSTREAM_{kind}_{field.upper()}": value for kind, fields in kinds.items() for field, value in fields.items()
    }


def _fields(path: Path, class_name: str) -> dict[str, Any]:
    tree = ast.parse(path.read_text())
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    return {
        node.target.id: _default(node.value)
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _default(value: ast.expr | None) -> Any:
    match value:
        case ast.Call(args=[ast.Constant(value=literal), *_]) | ast.Constant(value=literal):
            return literal
        case _:
            return None


# --- our own checks: pure, of text and parsed YAML


def unknown_settings(text: str, known: Iterable[str]) -> list[Fault]:
    """Return variables in the text that no service reads. pydantic would ignore them silently."""
    named = set(re.findall(r"\bSLIPSTREAM_(?:ORCHESTRATOR|VERIFIER|DRAFT|GATEWAY)_[A-Z0-9_]+", text))
    return [f"no service reads {name}" for name in sorted(named - set(known))]


def floating_images(images: Iterable[str], own_version: str) -> list[Fault]:
    """Return images without a tag of their own, and ours with another version than the
    package's."""
    faults = []
    for image in sorted(set(images)):
        tag = image.rpartition("/")[2].partition(":")[2]
        if not re.search(r"\d", tag):
            faults.append(f"{image} is not pinned to a version")
        elif image.startswith("slipstream/") and tag != own_version:
            faults.append(f"{image}: the package's version is {own_version}")
    return faults


def short_stop(environment: Setting, stop_seconds: float, known: Setting) -> list[Fault]:
    """Return a service that would be killed in the middle of its drain."""
    kinds = {match[1] for name in environment if (match := re.match(r"SLIPSTREAM_([A-Z]+)_", name))}
    faults = []
    for kind in sorted(kinds):
        name = f"SLIPSTREAM_{kind}_DRAIN_SECONDS"
        drain = float(environment.get(name, known[name]))
        if stop_seconds < drain + SPARE_SECONDS:
            faults.append(f"{kind.lower()} drains for {drain:g} s, but is killed {stop_seconds:g} s after SIGTERM")
    return faults


def broken_pipelines(config: Setting) -> list[Fault]:
    """Return components that a collector's pipelines name without a definition, or that are defined
    and not used."""
    service = config["service"]
    used = {"extensions": set(service.get("extensions", ()))}
    for kind in ("receivers", "processors", "exporters"):
        used[kind] = {name for pipeline in service["pipelines"].values() for name in pipeline.get(kind, ())}
    return [
        f"{kind[:-1]} {name} is {'used and not defined' if name in names else 'defined and not used'}"
        for kind, names in used.items()
        for name in sorted(names ^ set(config.get(kind) or ()))
    ]


def missing_limits(
    envoy: Setting, most_streams: int, metadata_kib: int, prefix: str = "/slipstream.v1.OrchestratorService/"
) -> list[Fault]:
    """Return limits that an Envoy in front of strangers lacks, or that differ from those of what is
    behind it, which serves the paths with a prefix."""
    manager = _typed(envoy["static_resources"]["listeners"][0], "HttpConnectionManager")
    routes = [route for host in manager["route_config"]["virtual_hosts"] for route in host["routes"]]
    runtime = envoy["layered_runtime"]["layers"][0]["static_layer"]
    actions = {action["name"].rpartition(".")[2] for action in envoy["overload_manager"]["actions"]}
    wanted = {
        f"max_concurrent_streams: {most_streams}": manager["http2_protocol_options"].get("max_concurrent_streams")
        == most_streams,
        f"max_request_headers_kb: {metadata_kib}": manager.get("max_request_headers_kb") == metadata_kib,
        "max_headers_count": "max_headers_count" in manager["common_http_protocol_options"],
        "idle_timeout": "idle_timeout" in manager["common_http_protocol_options"],
        "stream_idle_timeout": "stream_idle_timeout" in manager,
        "a limit of connections": _typed(envoy, "ConnectionLimit") != {},
        "protection from rapid resets": "overload.premature_reset_total_stream_count" in runtime,
        "an end to connections when memory ends": "stop_accepting_connections" in actions,
        "routes to OrchestratorService alone": all(
            route["match"].get("prefix") == prefix for route in routes if "route" in route
        ),
        "the exact names of origins": all(
            matcher.keys() == {"exact"} for matcher in _typed(envoy, "CorsPolicy").get("allow_origin_string_match", ())
        ),
        "turns without a timeout": all(route["route"]["timeout"] == "0s" for route in routes if "route" in route),
    }
    return [f"lacks {what}" for what, is_there in wanted.items() if not is_there]


def _typed(part: Any, kind: str) -> Any:
    """Return the first configuration of a kind below a part; empty if there is none."""
    if isinstance(part, dict) and str(part.get("@type", "")).endswith(f".{kind}"):
        return part
    below = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return next((found for each in below if (found := _typed(each, kind))), {})


def unknown_verifiers(documents: Iterable[Any]) -> list[Fault]:
    """Return an error if there are more verifiers than the orchestrator knows by name: they would
    hold GPUs and get no session."""
    addresses, most = 0, 1
    for document in documents:
        if document["kind"] == "ConfigMap":
            listed = document.get("data", {}).get("SLIPSTREAM_ORCHESTRATOR_VERIFIER", "")
            addresses = max(addresses, len(listed.split(",")) if listed else 0)
        elif document["kind"] == "HorizontalPodAutoscaler":
            most = max(most, document["spec"]["maxReplicas"])
        elif document["kind"] in ("StatefulSet", "LeaderWorkerSet") and document["metadata"]["name"] == "verifier":
            most = max(most, document["spec"].get("replicas", 1))
    return [f"up to {most} verifiers, and {addresses} addresses for them"] if most > addresses else []


def early_names(pods: Iterable[Any]) -> list[Fault]:
    """Return variables that name another one which is defined later: Kubernetes does not expand
    that name."""
    faults = []
    for container in (container for pod in pods for container in pod["containers"]):
        known: set[str] = set()
        for entry in container.get("env", ()):
            unknown = set(re.findall(r"\$\(([A-Z_]+)\)", entry.get("value", ""))) - known
            faults += [f"{entry['name']} names {name}, which comes later" for name in sorted(unknown)]
            known.add(entry["name"])
    return faults


def unshared_sessions(documents: Iterable[Any]) -> list[Fault]:
    """Return the faults of several orchestrators that share no store, or cannot reach one
    another."""
    documents = list(documents)
    several = [
        document
        for document in documents
        if document["kind"] == "StatefulSet"
        and document["metadata"]["name"] == "orchestrator"
        and document["spec"].get("replicas", 1) > 1
    ]
    faults = []
    for _, environment in workloads([*several, *(each for each in documents if each["kind"] == "ConfigMap")]):
        if not environment.get("SLIPSTREAM_ORCHESTRATOR_STORE", "").startswith("postgresql://"):
            faults.append("several orchestrators, and no PostgreSQL that they share")
        if "$(POD_NAME)" not in environment.get("SLIPSTREAM_ORCHESTRATOR_ADVERTISE", ""):
            faults.append("several orchestrators, and none advertises an address of its own")
    return faults


def workloads(documents: Iterable[Any]) -> Iterator[tuple[Any, dict[str, str]]]:
    """Return the pod templates among rendered manifests, each with the environment from its
    ConfigMaps and itself."""
    documents = list(documents)
    maps = {document["metadata"]["name"]: document["data"] for document in documents if document["kind"] == "ConfigMap"}
    for pod in (pod for document in documents for pod in pods_of(document)):
        environment: dict[str, str] = {}
        for container in pod["containers"]:
            for source in container.get("envFrom", ()):
                environment |= maps.get(source["configMapRef"]["name"], {})
            environment |= {entry["name"]: entry.get("value", "") for entry in container.get("env", ())}
        yield pod, environment


def pods_of(document: Any) -> Iterator[Any]:
    """Return the pod templates of a manifest. A LeaderWorkerSet has two."""
    spec = document.get("spec", {})
    group = spec.get("leaderWorkerTemplate", {})
    for template in (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate")):
        if template is not None and "spec" in template:
            yield template["spec"]


def wrong_rank_counts(documents: Iterable[Any]) -> list[Fault]:
    """Return the verifiers whose ranks are not as many as their pods have GPUs."""
    documents = list(documents)
    maps = [document for document in documents if document["kind"] == "ConfigMap"]
    faults = []
    for document in documents:
        size = document.get("spec", {}).get("leaderWorkerTemplate", {}).get("size", 1)
        for pod, environment in workloads([*maps, document]):
            gpus = sum(
                int(container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0))
                for container in pod["containers"]
            )
            ranks = int(environment.get("SLIPSTREAM_VERIFIER_TENSOR_PARALLEL_SIZE", 1))
            if gpus and ranks != gpus * size and "SLIPSTREAM_VERIFIER_MODEL" in environment:
                faults.append(f"{ranks} ranks of a verifier, on {size} x {gpus} GPUs")
    return faults


def unknown_jobs(alerts: str, config: Setting) -> list[Fault]:
    """Return jobs that the alerts name and Prometheus does not scrape."""
    scraped = {job["job_name"] for job in config["scrape_configs"]}
    return [
        f"no job {name}, which alerts ask for" for name in sorted(set(re.findall(r'job="([^"]+)"', alerts)) - scraped)
    ]


def rule_of(alerts: str) -> str:
    """Return the PrometheusRule with these alerts, word for word."""
    indented = "".join(f"  {line}" if line.strip() else line for line in alerts.splitlines(keepends=True))
    return (
        "# Made of deploy/prometheus/alerts.yaml by tools/check_deploy.py --write, and compared with it by make check.\n"
        "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: slipstream\nspec:\n" + indented
    )


def seconds(duration: str) -> float:
    """Return the seconds of a duration as Compose and systemd write it: 45, 45s, 1m30s."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([hms]?)", str(duration)))


def unguarded_compose(config: Setting) -> list[Fault]:
    """Return the faults of an orchestrator that lets every caller in, or whose access file is
    missing."""
    service = config["services"]["orchestrator"]
    folders = [f"/run/secrets/{name}" for name in service.get("secrets", ()) if name in config.get("secrets", {})]
    return unguarded(service.get("environment", {}), folders)


def unguarded_pods(pods: Iterable[tuple[Any, Setting]]) -> list[Fault]:
    """Return the unguarded orchestrators among the pods that Kustomize renders."""
    faults = []
    for pod, environment in pods:
        mounts = [mount["mountPath"] for container in pod["containers"] for mount in container.get("volumeMounts", ())]
        if any(container["name"] == "orchestrator" for container in pod["containers"]):
            faults += unguarded(environment, mounts)
    return faults


def unguarded(environment: Setting, mounts: Iterable[str]) -> list[Fault]:
    """Return the faults of an orchestrator's access file, which has to be in one of the mounts."""
    said = environment.get(ACCESS)
    if not said:
        return [f"{ACCESS} is not set: each caller may ask"]
    return [] if any(Path(said).is_relative_to(mount) for mount in mounts) else [f"nothing mounts {said}"]


# --- the files


def check_texts(known: Setting) -> Iterator[Report]:
    """Check every file that may name a setting, and the copy that Kustomize needs."""
    for path in sorted(DEPLOY.rglob("*")):
        if path.is_file() and "SLIPSTREAM_" in (text := path.read_text()):
            yield result(path, "settings", unknown_settings(text, known))
    is_copy = RULE.read_text() == rule_of(ALERTS.read_text())
    yield result(RULE, "rules", [] if is_copy else [f"not {name_of(ALERTS)}: run python tools/check_deploy.py --write"])
    for name in ("otel-collector.yaml", "jaeger.yaml"):
        path = DEPLOY / "observability" / name
        yield result(path, "pipelines", broken_pipelines(yaml.safe_load(path.read_text())))


def check_compose(known: Setting) -> Iterator[Report]:
    """Check the Compose file: its schema, its images, its stop times, and that its mounts exist."""
    for path in sorted(DEPLOY.glob("compose*.yaml")):
        yield run_tool(path, "compose-spec", "check-jsonschema", "--builtin-schema", "vendor.compose-spec", path)
    yield result(path := DEPLOY / "compose.access.yaml", "access", unguarded_compose(yaml.safe_load(path.read_text())))
    path = DEPLOY / "compose.yaml"
    services = yaml.safe_load(path.read_text())["services"]
    yield result(path, "images", floating_images((service["image"] for service in services.values()), version()))
    stops = [
        fault
        for service in services.values()
        for fault in short_stop(service.get("environment", {}), seconds(service.get("stop_grace_period", "10s")), known)
    ]
    yield result(path, "stop times", stops)
    mounts = [mount.split(":")[0] for service in services.values() for mount in service.get("volumes", ())]
    absent = [mount for mount in mounts if mount.startswith(".") and not (DEPLOY / mount).exists()]
    yield result(path, "mounts", [f"mounts {mount}, which is not there" for mount in absent])


def check_dockerfile() -> Iterator[Report]:
    """Check the Dockerfile and the version in its image labels."""
    path = DEPLOY / "docker" / "Dockerfile"
    yield run_tool(path, "hadolint", "hadolint", "--no-color", path)
    labelled = re.findall(r"^ARG VERSION=(\S+)$", path.read_text(), re.MULTILINE)
    yield result(path, "version", [] if labelled == [version()] else [f"labels {labelled}, the package is {version()}"])


def check_kubernetes(known: Setting) -> Iterator[Report]:
    """Check each overlay as Kustomize renders it, and run checkov over all of them and the
    Dockerfile."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        shutil.copy(DEPLOY / "docker" / "Dockerfile", folder / "Dockerfile")
        for overlay in sorted(path.parent for path in OVERLAYS.glob("*/kustomization.yaml")):
            rendered = folder / f"{overlay.name}.yaml"
            yield run_tool(overlay, "kustomize", "kubectl", "kustomize", overlay, output=rendered)
            if rendered.exists():
                yield from check_rendered(overlay, rendered, known)
        scan = run_tool(OVERLAYS, "checkov", "checkov", "--config-file", DEPLOY / "checkov.yaml", "--directory", folder)
        files = ", ".join(sorted(path.name for path in folder.iterdir()))
        yield Report(f"{name_of(OVERLAYS)} rendered ({files})", "checkov", scan.faults, scan.skipped)


def check_rendered(overlay: Path, rendered: Path, known: Setting) -> Iterator[Report]:
    """Check manifests as the cluster would get them."""
    documents = [document for document in yaml.safe_load_all(rendered.read_text()) if document]
    own = rendered.with_suffix(".kubernetes")
    own.write_text(yaml.safe_dump_all(document for document in documents if document["kind"] not in OTHER_SCHEMAS))
    yield run_tool(overlay, "kubernetes-validate", "kubernetes-validate", "--strict", "--quiet", own)
    own.unlink()
    pods = list(workloads(documents))
    images = [container["image"] for pod, _ in pods for container in pod["containers"]]
    yield result(overlay, "images", floating_images(images, version()))
    stops = [
        f for pod, environment in pods for f in short_stop(environment, pod["terminationGracePeriodSeconds"], known)
    ]
    yield result(overlay, "stop times", stops)
    yield result(overlay, "verifiers", unknown_verifiers(documents))
    yield result(overlay, "ranks", wrong_rank_counts(documents))
    yield result(overlay, "names", early_names(pod for pod, _ in pods))
    yield result(overlay, "sessions", unshared_sessions(documents))
    if overlay.name == "tls":  # the others speak plaintext, by which clients show no token
        yield result(overlay, "access", unguarded_pods(pods))


def check_chart() -> Iterator[Report]:
    """Check that the Helm chart is what Kustomize renders."""
    yield result(CHART, "generated", chart_faults())
    yield run_tool(CHART, "helm lint", "helm", "lint", "--strict", "--quiet", CHART)


def check_systemd(known: Setting) -> Iterator[Report]:
    """Check the units as systemd reads them, and their confinement as it rates them."""
    units = sorted((DEPLOY / "systemd").glob("*.service"))
    with tempfile.TemporaryDirectory() as directory:
        for unit in units:
            text = unit.read_text()
            copy = Path(directory) / unit.name  # the program it names is not on this machine
            copy.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
        for unit in units:
            copy = Path(directory) / unit.name
            yield run_tool(unit, "verify", "systemd-analyze", "verify", copy, optional=True, said_is_fault=True)
            judge = ("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", copy)
            yield run_tool(unit, "security", *judge, optional=True)
            if "orchestrator" in unit.name:
                settings = (unit.parent / "orchestrator.env").read_text()
                yield result(unit, "access", [] if f"\n{ACCESS}=" in settings else [f"{ACCESS} is not set"])
            yield result(unit, "stop times", short_unit(unit.read_text(), unit.parent, known))


def short_unit(text: str, folder: Path, known: Setting) -> list[Fault]:
    """Return the faults of a unit's stop time, as `short_stop` does; its environment files lie in
    ``folder``."""
    stop = re.search(r"^TimeoutStopSec=(.+)$", text, re.MULTILINE)
    named = re.search(r"^EnvironmentFile=/etc/slipstream/(.+)$", text, re.MULTILINE)
    if stop is None or named is None:
        return ["says no TimeoutStopSec or no EnvironmentFile of /etc/slipstream"]
    parser = configparser.RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their case
    parser.read_string(f"[all]\n{(folder / named[1]).read_text()}")
    return short_stop(dict(parser["all"]), seconds(stop[1]), known)


def check_prometheus() -> Iterator[Report]:
    """Check the files of Prometheus and its Alertmanager."""
    folder = DEPLOY / "observability"
    prometheus, alertmanager = folder / "prometheus.yaml", folder / "alertmanager.yaml"
    yield run_tool(prometheus, "promtool", "promtool", "check", "config", "--syntax-only", prometheus, optional=True)
    yield result(prometheus, "jobs", unknown_jobs(ALERTS.read_text(), yaml.safe_load(prometheus.read_text())))
    yield run_tool(alertmanager, "amtool", "amtool", "check-config", alertmanager, optional=True)


def limits_of(path: Path, known: Setting) -> list[Fault]:
    """Return the limits that a file of Envoy lacks."""
    config = yaml.safe_load(path.read_text())
    if path.name == "gateway.yaml":
        return missing_limits(config, MOST_STREAMS, known["SLIPSTREAM_GATEWAY_MAX_HEADER_KIB"], prefix="/")
    return missing_limits(config, MOST_STREAMS, MAX_METADATA_BYTES // 1024)


def check_envoy(known: Setting) -> Iterator[Report]:
    """Check the proxies between strangers and an orchestrator: as Envoy reads them, and their
    limits."""
    for path in sorted((DEPLOY / "envoy").glob("*.yaml")):
        yield run_tool(path, "envoy", "python", ROOT / "tools" / "check_envoy.py", path)
        yield result(path, "limits", limits_of(path, known))


def check_yaml() -> Iterator[Report]:
    """Check every YAML file's form, and for keys that come twice."""
    files = sorted(path for path in DEPLOY.rglob("*.yaml") if CHART / "templates" not in path.parents)
    said = run_tool(
        DEPLOY, "yamllint", "yamllint", "--strict", "--format", "parsable", "-c", DEPLOY / "yamllint.yaml", *files
    )
    if said.faults and not any(fault.startswith("deploy/") for fault in said.faults):
        yield said  # the tool itself failed
    for file in files:
        own = f"{name_of(file)}:"
        yield result(file, "yamllint", [fault.removeprefix(own) for fault in said.faults if fault.startswith(own)])


# --- all of it


def check_all() -> list[Report]:
    """Run every check, side by side."""
    known = settings_of()
    checks: list[Callable[[], Iterator[Report]]] = [
        partial(check_kubernetes, known),
        partial(check_compose, known),
        check_dockerfile,
        check_chart,
        partial(check_systemd, known),
        check_prometheus,
        partial(check_envoy, known),
        check_yaml,
        partial(check_texts, known),
    ]
    with ThreadPoolExecutor() as pool:
        return [report for reports in pool.map(lambda check: list(check()), checks) for report in reports]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the copies again instead")
    if parser.parse_args().write:
        RULE.write_text(rule_of(ALERTS.read_text()))
        return
    if bad := tell(check_all()):
        sys.exit(f"{bad} of what deploy/ has is at fault")


if __name__ == "__main__":
    main()
