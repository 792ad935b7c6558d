"""What tools/check_deploy.py finds by itself, each fault made once."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml
from fastapi import routing

from gateway.app import ENDPOINTS
from slipstream.rpc.channel import MAX_METADATA_BYTES, MOST_STREAMS
from slipstream.telemetry import instruments
from slipstream.version import VERSION
from tests.documents import ROOT, anchors
from tools import check_deploy as deploy
from tools.deploy_tools import version

KNOWN = deploy.settings_of()


def test_settings_are_read_off_the_source_with_their_defaults() -> None:
    assert KNOWN["SLIPSTREAM_ORCHESTRATOR_DRAIN_SECONDS"] == 30
    assert KNOWN["SLIPSTREAM_VERIFIER_DRAIN_SECONDS"] == 10
    assert KNOWN["SLIPSTREAM_DRAFT_ADDRESS"] == "127.0.0.1:50053"
    assert {"SLIPSTREAM_DRAFT_TLS_KEY", "SLIPSTREAM_ORCHESTRATOR_INSECURE"} <= set(KNOWN), "what all services share"
    assert version() == VERSION
    assert KNOWN["SLIPSTREAM_GATEWAY_DRAIN_SECONDS"] == 30


def test_a_misspelt_setting_is_found() -> None:
    assert deploy.unknown_settings("SLIPSTREAM_VERIFIER_THREADS: 2\nSLIPSTREAM_DRAFT_MODEL=x", KNOWN) == []
    assert deploy.unknown_settings("SLIPSTREAM_VERIFIER_THREAD: 2", KNOWN) == [
        "no service reads SLIPSTREAM_VERIFIER_THREAD"
    ]


@pytest.mark.parametrize("image", ["prom/prometheus", "prom/prometheus:latest", "registry:5000/prometheus"])
def test_an_image_without_a_version_is_found(image: str) -> None:
    assert deploy.floating_images([image], "0.1.0") == [f"{image} is not pinned to a version"]


def test_our_images_have_the_packages_version() -> None:
    assert deploy.floating_images(["slipstream/draft:0.1.0", "grafana/grafana:13.3.0"], "0.1.0") == []
    assert deploy.floating_images(["slipstream/draft:0.1.0"], "0.2.0") == [
        "slipstream/draft:0.1.0: the package's version is 0.2.0"
    ]


def test_a_service_killed_in_its_drain_is_found() -> None:
    said = {"SLIPSTREAM_ORCHESTRATOR_DRAIN_SECONDS": "60"}
    assert deploy.short_stop(said, 70, KNOWN) == []
    assert deploy.short_stop(said, 69, KNOWN) == ["orchestrator drains for 60 s, but is killed 69 s after SIGTERM"]
    assert deploy.short_stop({"SLIPSTREAM_DRAFT_MODEL": "x"}, 19, KNOWN), "the default counts where nothing is said"
    assert deploy.short_stop({"GF_AUTH_BASIC_ENABLED": "false"}, 0, KNOWN) == []


def test_the_systemd_units_drain_is_that_of_their_environment_file() -> None:
    folder = deploy.DEPLOY / "systemd"
    unit = (folder / "slipstream-verifier.service").read_text()
    assert deploy.short_unit(unit, folder, KNOWN) == []
    assert deploy.short_unit(unit.replace("TimeoutStopSec=25", "TimeoutStopSec=10"), folder, KNOWN)
    assert deploy.short_unit(unit.replace("TimeoutStopSec=25", ""), folder, KNOWN)


@pytest.mark.parametrize(("duration", "expected"), [("45s", 45), ("1m30s", 90), ("25", 25), ("0.5h", 1800)])
def test_durations(duration: str, expected: float) -> None:
    assert deploy.seconds(duration) == expected


def test_a_pipelines_misspelt_component_is_found() -> None:
    config = yaml.safe_load((deploy.DEPLOY / "observability" / "otel-collector.yaml").read_text())
    assert deploy.broken_pipelines(config) == []
    config["exporters"]["otlp/jeager"] = config["exporters"].pop("otlp_grpc/jaeger")
    assert deploy.broken_pipelines(config) == [
        "exporter otlp/jeager is defined and not used",
        "exporter otlp_grpc/jaeger is used and not defined",
    ]


def test_verifiers_that_the_orchestrator_does_not_know_are_found() -> None:
    def manifests(addresses: str, most: int) -> list[Any]:
        return [
            {"kind": "ConfigMap", "data": {"SLIPSTREAM_ORCHESTRATOR_VERIFIER": addresses}},
            {"kind": "HorizontalPodAutoscaler", "spec": {"maxReplicas": most}},
        ]

    assert deploy.unknown_verifiers(manifests("verifier-0:1,verifier-1:1", 2)) == []
    assert deploy.unknown_verifiers(manifests("verifier-0:1,verifier-1:1", 3)) == [
        "up to 3 verifiers, and 2 addresses for them"
    ]


def test_ranks_that_are_not_as_many_as_the_gpus_are_found() -> None:
    def pod(ranks: int) -> dict[str, Any]:
        said = {"MODEL": "/models/target", "TENSOR_PARALLEL_SIZE": str(ranks)}
        env = [{"name": f"SLIPSTREAM_VERIFIER_{name}", "value": value} for name, value in said.items()]
        return {"spec": {"containers": [{"env": env, "resources": {"limits": {"nvidia.com/gpu": "4"}}}]}}

    def faults(spec: dict[str, Any]) -> list[str]:
        return deploy.wrong_rank_counts([{"kind": "any", "spec": spec}])

    assert faults({"template": pod(4)}) == []
    assert faults({"template": pod(1)}) == ["1 ranks of a verifier, on 1 x 4 GPUs"]
    both = {"leaderTemplate": pod(8), "workerTemplate": pod(4)}
    assert faults({"leaderWorkerTemplate": {"size": 2, **both}}) == ["4 ranks of a verifier, on 2 x 4 GPUs"]


def test_a_variable_that_names_a_later_one_is_found() -> None:
    own, other = {"name": "OWN", "value": "here"}, {"name": "OTHER", "value": "at $(OWN)"}
    assert deploy.early_names([{"containers": [{"env": [own, other]}, {}]}]) == []
    assert deploy.early_names([{"containers": [{"env": [other, own]}]}]) == ["OTHER names OWN, which comes later"]


def test_several_orchestrators_that_share_nothing_are_found() -> None:
    def manifests(replicas: int, **environment: str) -> list[Any]:
        env = [{"name": f"SLIPSTREAM_ORCHESTRATOR_{name}", "value": value} for name, value in environment.items()]
        pod = {"spec": {"containers": [{"name": "orchestrator", "env": env}]}}
        spec = {"replicas": replicas, "template": pod}
        return [{"kind": "StatefulSet", "metadata": {"name": "orchestrator"}, "spec": spec}]

    shared = {"STORE": "postgresql://?service=slipstream", "ADVERTISE": "$(POD_NAME).orchestrator:50051"}
    assert deploy.unshared_sessions(manifests(1)) == []
    assert deploy.unshared_sessions(manifests(2, **shared)) == []
    assert deploy.unshared_sessions(manifests(2)) == [
        "several orchestrators, and no PostgreSQL that they share",
        "several orchestrators, and none advertises an address of its own",
    ]


def test_an_orchestrator_without_access_control_is_found() -> None:
    said = {deploy.ACCESS: "/etc/slipstream/access/access.toml"}
    assert deploy.unguarded({}, ["/etc/slipstream/access"]) == [f"{deploy.ACCESS} is not set: each caller may ask"]
    assert deploy.unguarded(said, ["/etc/slipstream/tls"]) == ["nothing mounts /etc/slipstream/access/access.toml"]
    assert deploy.unguarded(said, ["/etc/slipstream/access"]) == []


def test_every_form_of_deployment_can_ask_who_calls() -> None:
    config = yaml.safe_load((deploy.DEPLOY / "compose.access.yaml").read_text())
    assert deploy.unguarded_compose(config) == []
    component = deploy.DEPLOY / "kubernetes" / "components" / "access"
    (pod,) = (pod for pod, _ in deploy.workloads([yaml.safe_load((component / "orchestrator.yaml").read_text())]))
    name, _, value = (component / "orchestrator.env").read_text().strip().partition("=")
    assert deploy.unguarded_pods([(pod, {name: value})]) == []
    overlay = yaml.safe_load((deploy.OVERLAYS / "tls" / "kustomization.yaml").read_text())
    assert "../../components/access" in overlay["components"]
    assert f"\n{deploy.ACCESS}=/etc/slipstream/tls/" in (deploy.DEPLOY / "systemd" / "orchestrator.env").read_text()


def test_the_verifier_asks_the_vllm_server_that_stands_beside_it() -> None:
    overlay = deploy.OVERLAYS / "vllm"
    objects = list(yaml.safe_load_all((overlay / "vllm.yaml").read_text()))
    (service,) = (each for each in objects if each["kind"] == "Service")
    address = f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    settings = yaml.safe_load((overlay / "kustomization.yaml").read_text())["configMapGenerator"][0]["literals"]
    assert f"SLIPSTREAM_VERIFIER_ENGINE_ADDRESS={address}" in settings
    asked, asks = yaml.safe_load_all((overlay / "network-policies.yaml").read_text())
    assert asked["spec"]["podSelector"]["matchLabels"] == service["spec"]["selector"]
    assert asks["spec"]["egress"][0]["to"] == [{"podSelector": asked["spec"]["podSelector"]}]
    ((pod, _),) = deploy.workloads(objects)
    (container,) = pod["containers"]
    ranks = next(arg for arg in container["args"] if arg.startswith("--tensor-parallel-size="))
    assert ranks.rpartition("=")[2] == container["resources"]["limits"]["nvidia.com/gpu"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_composed_verifiers_ask_the_server_beside_them(engine: str) -> None:
    composed = yaml.safe_load((deploy.DEPLOY / f"compose.{engine}.yaml").read_text())["services"]
    settings, server = composed["verifier"]["environment"], composed[engine]
    assert settings["SLIPSTREAM_VERIFIER_ENGINE"] == engine
    port = next(word for word in server["command"] if word.startswith("--port=")).rpartition("=")[2]
    assert settings["SLIPSTREAM_VERIFIER_ENGINE_ADDRESS"] == f"http://{engine}:{port}"
    assert server["networks"] == ["back"]  # which no port of the host leads to


def test_bad_health_takes_an_orchestrator_out_of_service_and_does_not_restart_it() -> None:
    base = deploy.DEPLOY / "kubernetes" / "base" / "orchestrator.yaml"
    ((pod, _),) = deploy.workloads(list(yaml.safe_load_all(base.read_text())))
    (container,) = pod["containers"]
    assert "grpc" in container["readinessProbe"]
    assert "grpc" not in container["livenessProbe"] and "exec" not in container["livenessProbe"]


def test_a_gateway_without_an_orchestrator_is_taken_out_of_service_and_not_restarted() -> None:
    base = deploy.DEPLOY / "kubernetes" / "base" / "gateway.yaml"
    ((pod, _),) = deploy.workloads(list(yaml.safe_load_all(base.read_text())))
    (container,) = pod["containers"]
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/version", "liveness": "/version", "readiness": "/health"}


def test_what_is_in_front_of_the_gateway_passes_on_every_path_but_that_of_the_metrics() -> None:
    known = {
        route.path for endpoint in ENDPOINTS for route in endpoint.router.routes if isinstance(route, routing.APIRoute)
    }
    components = deploy.DEPLOY / "kubernetes" / "components"
    ingress, _ = yaml.safe_load_all((components / "ingress" / "ingress.yaml").read_text())
    paths = ingress["spec"]["rules"][0]["http"]["paths"]
    http, _ = yaml.safe_load_all((components / "routes" / "routes.yaml").read_text())
    matches = [match["path"] for match in http["spec"]["rules"][0]["matches"]]
    for passed_on in (
        {(path["pathType"], path["path"]) for path in paths},
        {(match["type"].removeprefix("Path"), match["value"]) for match in matches},
    ):
        unreached = {path for path in known if not {("Exact", path), ("Prefix", f"/{path.split('/')[1]}")} & passed_on}
        assert unreached == {"/metrics"}


def test_the_images_have_every_extra_that_serves() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    serving = set(project["optional-dependencies"]) - {
        "bench",
        "dev",
        "services",
        "embedded",
        "distill",
        "quantised",
        "hub",
        "plot",
        "llamacpp-native",
    }
    dockerfile = (deploy.DEPLOY / "docker" / "Dockerfile").read_text()
    installed = [set(extras.split(",")) for extras in re.findall(r"'\.\[(.+)\]'", dockerfile)]
    assert set().union(*installed) == serving - {"compiled"}  # which torch brings
    assert all("llamacpp" in extras for extras in installed if "torch" in extras)
    assert "--wheel-dir /wheels . ./slipstream/embedded\n" in dockerfile  # the pair is a package of its own


def test_the_autoscaler_reads_what_the_adapter_shows_and_only_metrics_that_there_are() -> None:
    folder = deploy.DEPLOY / "kubernetes" / "components" / "autoscaling"
    scaler = yaml.safe_load((folder / "verifier.yaml").read_text())
    wanted = {metric["external"]["metric"]["name"] for metric in scaler["spec"]["metrics"]}
    rules = yaml.safe_load((folder / "prometheus-adapter.yaml").read_text())["rules"]["external"]
    assert wanted == {rule["name"]["as"] for rule in rules}
    known = {each.exposed_name for each in (*instruments.OF_THE_ORCHESTRATOR, *instruments.OF_A_MODEL_SERVICE)}
    asked = {
        name for rule in rules for name in re.findall(r"slipstream_\w+", rule["seriesQuery"] + rule["metricsQuery"])
    }
    assert asked and asked <= known


def test_a_job_that_is_not_scraped_is_found() -> None:
    config = {"scrape_configs": [{"job_name": "slipstream-draft"}]}
    assert deploy.unknown_jobs('up{job="slipstream-draft"} == 0', config) == []
    assert deploy.unknown_jobs('up{job="draft"} == 0', config) == ["no job draft, which alerts ask for"]


def test_the_rule_has_the_alerts_word_for_word() -> None:
    alerts = "groups:\n  - name: one\n    rules:\n      - alert: A\n        expr: |\n          up\n\n          == 0\n"
    assert yaml.safe_load(deploy.rule_of(alerts))["spec"] == yaml.safe_load(alerts)


ENVOY = deploy.DEPLOY / "envoy" / "grpc-web.yaml"


@pytest.mark.parametrize("name", ["envoy.yaml", "gateway.yaml", "grpc-web.yaml"])
def test_an_envoy_in_front_of_strangers_has_the_limits_of_what_is_behind_it(name: str) -> None:
    assert not deploy.limits_of(ENVOY.with_name(name), KNOWN)


@pytest.mark.parametrize(
    ("line", "instead", "what"),
    [
        ("max_concurrent_streams: 100", "max_concurrent_streams: 1000", "max_concurrent_streams: 100"),
        ("max_request_headers_kb: 16", "max_request_headers_kb: 60", "max_request_headers_kb: 16"),
        ("max_headers_count: 100", "", "max_headers_count"),
        ("idle_timeout: 300s", "", "idle_timeout"),
        ("stream_idle_timeout: 3900s", "", "stream_idle_timeout"),
        ("connection_limit.v3.ConnectionLimit", "other.v3.Other", "a limit of connections"),
        ("overload.premature_reset_total_stream_count: 200", "", "protection from rapid resets"),
        ("envoy.overload_actions.stop_accepting_connections", "other", "an end to connections when memory ends"),
        (
            "match: {prefix: /slipstream.v1.OrchestratorService/",
            "match: {prefix: /",
            "routes to OrchestratorService alone",
        ),
        ("            timeout: 0s", "            timeout: 15s", "turns without a timeout"),
        ("- exact: https://chat", '- safe_regex: {regex: ".*"} # https://chat', "the exact names of origins"),
    ],
)
def test_an_envoy_that_lacks_a_limit_is_found(line: str, instead: str, what: str) -> None:
    text = ENVOY.read_text()
    assert line in text
    config = yaml.safe_load(text.replace(line, instead, 1))
    assert deploy.missing_limits(config, MOST_STREAMS, MAX_METADATA_BYTES // 1024) == [f"lacks {what}"]


def test_every_page_that_deploy_names_has_its_heading() -> None:
    named: dict[str, str] = {}
    for path in deploy.DEPLOY.rglob("*"):
        if path.is_file() and path.suffix != ".md":
            named |= dict.fromkeys(re.findall(r"docs/[\w/.-]+\.md(?:#[\w-]+)?", path.read_text()), path.name)
    assert any("#" in target for target in named), "the alerts name their runbooks"
    for target, file in named.items():
        page, _, anchor = target.partition("#")
        assert (ROOT / page).is_file(), f"{file} names {page}"
        assert not anchor or anchor in anchors(ROOT / page), f"{file} names {target}"
