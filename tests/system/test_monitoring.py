"""The alerts and the dashboard on what real services tell a real Prometheus and Alertmanager."""

from __future__ import annotations

import http.server
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import pytest
import yaml

from benchmarks.many_chats import hold_chats
from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.client import Client, PeerError, Settings
from tests.gateway_process import GatewayProcess, gateway_process
from tests.monitoring_files import DASHBOARD, RULE_TESTS, RULES, alerting_rules, panels

pytestmark = pytest.mark.timeout(400)
"""The first test waits for the services, and for what is done to them."""

DEADLINE_SECONDS = 60.0
"""Limit of each wait: more than a busy machine takes. A test that passes does not reach it."""

T = TypeVar("T")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here; it comes with Prometheus")
@pytest.mark.parametrize("command", [["check", "rules", str(RULES)], ["test", "rules", *map(str, RULE_TESTS)]])
def test_promtool_finds_no_fault_with_the_rules(command: list[str]) -> None:
    done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the real thing


def program(*names: str) -> str | None:
    """Where one of these is installed: Debian calls the Alertmanager otherwise than its makers."""
    return next(filter(None, map(shutil.which, names)), None)


PROMETHEUS = program("prometheus")
ALERTMANAGER = program("alertmanager", "prometheus-alertmanager")


def until(condition: Callable[[], T], what: str) -> T:
    """What the condition says once that is not nothing."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS:g} s: {what}"
        time.sleep(0.2)
    return found


def shortened(rules: str) -> str:
    """The real rules, with three things put otherwise, since no test can wait so long: an
    alert that has to hold `for` some time holds for 2 s, records are made each second and not each
    minute, and a week counts from 5 samples on, not from
    360. Windows stay what they are: over ten minutes is here over all that there was."""
    rules = re.sub(r"\bfor: \w+", "for: 2s", rules)
    return rules.replace("interval: 1m", "interval: 1s").replace(">= 360", ">= 5")


class Webhook:
    """Takes what an Alertmanager sends. Use as a context."""

    def __init__(self) -> None:
        self._got: list[dict[str, Any]] = []
        got = self._got

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                got.extend(json.loads(body)["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,))

    def __enter__(self) -> Webhook:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def alert(self, name: str, status: str = "firing") -> dict[str, Any]:
        """The first of this name; empty if there is none yet."""
        alike = (each for each in list(self._got) if (each["labels"]["alertname"], each["status"]) == (name, status))
        return next(alike, {})


class Prometheus:
    """One that runs, and how the dashboard asks it."""

    variables = (
        ("$job", ".+"),
        ("$instance", ".+"),
        ("$__rate_interval", "10s"),
        ("$__range", "5m"),
    )

    def __init__(self, address: str) -> None:
        self.address = address
        self._since = time.time()

    def get(self, path: str, **parameters: object) -> Any:
        """Data of the HTTP API; None while it is not there."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 503:  # which it says until it is ready
                    raise AssertionError(f"{parameters}: {error.read().decode()}") from None
            return None
        except OSError:
            return None

    def now(self, query: str) -> list[dict[str, Any]]:
        """Of an instant query: its series, each with what it says."""
        data = self.get("query", query=query) or {"result": []}
        return [{"metric": series["metric"], "values": [series["value"]]} for series in data["result"]]

    def value(self, query: str) -> float:
        """What a query's one series says; 0 if there is none."""
        found = self.now(query)
        return float(found[0]["values"][0][1]) if found else 0.0

    def shown(self, target: dict[str, Any]) -> list[dict[str, Any]]:
        """What Grafana would draw for one of a panel's queries: those series that have a number."""
        query = target["expr"]
        for name, value in self.variables:
            query = query.replace(name, value)
        if target["instant"]:
            series = self.now(query)
        else:
            found = self.get("query_range", query=query, start=self._since, end=time.time(), step=1)
            series = found["result"] if found else []
        return [each for each in series if any(math.isfinite(float(value)) for _, value in each["values"])]


@dataclass(slots=True)
class Scene:
    """What was set up, and what came of it."""

    prometheus: Prometheus
    webhook: Webhook
    failures: set[str] = field(default_factory=set)
    """Why turns of the load failed."""


_ENDS_WITH_US = """
import os, sys
from slipstream.parent import end_with
end_with(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[None]:
    """A program that ends with this context, and also when the tests are killed."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _ENDS_WITH_US, str(os.getpid()), *command], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
        assert process.poll() is None, f"{Path(command[0]).name} ended:\n{log.read_text()}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def monitors(targets: dict[str, str], folder: Path) -> Iterator[tuple[Prometheus, Webhook]]:
    """A Prometheus that scrapes the jobs at their addresses each second, and an Alertmanager that
    it tells."""
    assert PROMETHEUS is not None and ALERTMANAGER is not None
    address, alertmanager = free_address(), free_address()
    (folder / "alerts.yaml").write_text(shortened(RULES.read_text()))
    scrapes = [{"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": scrapes,
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with ExitStack() as stack:
        webhook = stack.enter_context(Webhook())
        routes = {
            "route": {"receiver": "test", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"},
            "receivers": [{"name": "test", "webhook_configs": [{"url": webhook.url}]}],
        }
        (folder / "alertmanager.yaml").write_text(yaml.safe_dump(routes))
        command = [ALERTMANAGER, f"--config.file={folder}/alertmanager.yaml", f"--storage.path={folder}/alertmanager"]
        command += [f"--web.listen-address={alertmanager}", "--cluster.listen-address="]
        stack.enter_context(running(command, folder / "alertmanager.log"))
        command = [PROMETHEUS, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
        stack.enter_context(running([*command, f"--web.listen-address={address}"], folder / "prometheus.log"))
        yield Prometheus(address), webhook


@contextmanager
def load(address: str, gateway: GatewayProcess, failures: set[str]) -> Iterator[None]:
    """Chats of all ways to speculate, and a completion over HTTP after each, one after another
    until the context ends; turns may fail meanwhile."""
    over = threading.Event()
    kinds: tuple[Settings, ...] = (
        Settings(max_token_count=150, draft_length=4),
        Settings(max_token_count=150, draft_length=4, ratio=True),
        Settings(max_token_count=150),
    )

    def work() -> None:
        for number, settings in enumerate(cycle(kinds)):
            if over.is_set():
                return
            failures.update(hold_chats(address, 2, 2, settings, seed=number).failures)
            gateway.send("/v1/completions", {"model": "m", "prompt": [1, 2, 3], "max_tokens": 20})

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Services under load, watched; a message is refused, the draft is killed and started again,
    and so is the verifier."""
    if PROMETHEUS is None or ALERTMANAGER is None:
        pytest.skip("Prometheus or its Alertmanager is not here: apt-get install prometheus prometheus-alertmanager")
    targets = {f"slipstream-{service}": free_address() for service in ("orchestrator", "verifier", "draft", "gateway")}
    told = {job: ["--metrics-address", target] for job, target in targets.items()}
    pair = PairSettings(
        target="arithmetic:ends=0&forward_ms=5",
        draft="arithmetic:ends=0&agreement=0.8&forward_ms=1",
        target_flags=[*told["slipstream-verifier"], "--kv-memory-mib", "1", "--drain-seconds", "0"],
        draft_flags=[*told["slipstream-draft"], "--kv-memory-mib", "1", "--drain-seconds", "0"],
        orchestrator_flags=[
            *told["slipstream-orchestrator"],
            *("--draft-deadline-seconds", "0.5", "--verifier-patience-seconds", "3", "--drain-seconds", "1"),
        ],
    )
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("monitoring")
        prometheus, webhook = stack.enter_context(monitors(targets, folder))
        local = stack.enter_context(LocalServices(pair))
        scene = Scene(prometheus, webhook)
        address = targets["slipstream-gateway"]
        gateway = stack.enter_context(gateway_process(local.orchestrator_address, "--model-name", "m", address=address))
        until(lambda: prometheus.value("sum(up)") == 4, "Prometheus reaches all services")
        stack.enter_context(load(local.orchestrator_address, gateway, scene.failures))
        with Client(local.orchestrator_address) as client, client.chat() as chat, pytest.raises(PeerError):
            chat.send("").wait()
        until(lambda: prometheus.value("instance:slipstream_acceptance:ratio_rate10m"), "something is accepted")
        disturb(local, scene)
        yield scene


def disturb(local: LocalServices, scene: Scene) -> None:
    """As the proof does it (proving/disturbances.py): SIGKILL in the middle of turns, and a new
    process at the address."""
    prometheus, webhook = scene.prometheus, scene.webhook

    def kill(name: str) -> None:
        local.services[name].process.send_signal(signal.SIGKILL)
        local.services[name].process.wait()

    kill("draft")
    until(lambda: webhook.alert("SlipstreamDraftAway"), "the draft is away, and the webhook told so")
    until(lambda: prometheus.value("sum(slipstream_draft_fallbacks_total)"), "requests that the draft failed")
    local.start_draft().wait_until_healthy(DEADLINE_SECONDS)
    until(lambda: webhook.alert("SlipstreamDraftAway", "resolved"), "the draft is back, and the webhook told so")
    until(lambda: prometheus.value("slipstream_draft_recoveries_total"), "the draft answers again")
    kill("verifier")
    until(lambda: webhook.alert("SlipstreamVerifierAway"), "the verifier is away, and the webhook told so")
    until(lambda: prometheus.value("sum(slipstream_request_failure_total)"), "turns that failed")
    local.start_verifier().wait_until_healthy(DEADLINE_SECONDS)
    until(lambda: webhook.alert("SlipstreamVerifierAway", "resolved"), "the verifier is back, and the webhook told so")


@pytest.mark.monitoring
@pytest.mark.parametrize("panel", panels(), ids=[panel["title"].replace(" ", "-") for panel in panels()])
def test_a_panel_draws_every_one_of_its_queries(scene: Scene, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        series = until(partial(scene.prometheus.shown, target), target["expr"])
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            assert all(each["metric"].get(label) for each in series), f"{target['expr']} has no {label}"
        if panel["fieldConfig"]["defaults"]["unit"] == "percentunit" and target["format"] != "heatmap":
            values = [float(value) for each in series for _, value in each["values"]]
            # Where a counter has just begun, a rate is a guess: a share may be above 1 for a
            # moment.
            assert 0 <= median(filter(math.isfinite, values)) <= 1, target["expr"]


@pytest.mark.monitoring
def test_the_dashboards_variables_find_the_jobs_and_their_instances(scene: Scene) -> None:
    variables = {each["name"]: each for each in json.loads(DASHBOARD.read_text())["templating"]["list"]}
    for name in ("job", "instance"):
        matched = re.fullmatch(r"label_values\((.+), (\w+)\)", variables[name]["definition"])
        assert matched is not None
        selector = matched[1].replace("$job", ".+")
        query = f"group by ({matched[2]}) ({selector})"
        # A scrape that takes longer than its second, as one may here, leaves its service out until
        # the next.
        until(partial(scene.prometheus.value, f"count({query}) == 4"), query)


@pytest.mark.monitoring
@pytest.mark.parametrize("name", sorted({rule["alert"] for rule in alerting_rules()}))
def test_what_an_alert_looks_at_is_there(scene: Scene, name: str) -> None:
    """Each series that its expression selects, and each record: one that selects nothing would be
    quiet for ever."""
    expressions = " ".join(rule["expr"] for rule in alerting_rules() if rule["alert"] == name)
    selectors = re.findall(r"(?:\b\w+:)?\b(?:slipstream|process)_\w+(?::\w+)?(?:{[^}]*})?|up{[^}]*}", expressions)
    assert selectors
    for selector in selectors:
        until(partial(scene.prometheus.now, f"count_over_time({selector}[10m])"), selector)


@pytest.mark.monitoring
def test_every_rule_can_be_evaluated(scene: Scene) -> None:
    groups = scene.prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule.get("lastError")] == []
    assert {rule["name"] for rule in rules} >= {rule["alert"] for rule in alerting_rules()}


@pytest.mark.monitoring
def test_the_pair_is_told_by_the_weights_of_both(scene: Scene) -> None:
    pairs = {
        (series["metric"]["target"], series["metric"].get("draft"))
        for series in scene.prometheus.now("last_over_time(pair:slipstream_acceptance:ratio_rate7d[5m])")
    }
    weights = {
        series["metric"]["service"]: series["metric"]["weights_fingerprint"]
        for series in scene.prometheus.now("last_over_time(slipstream_info[5m])")
    }
    assert (weights["orchestrator"], weights["draft"]) in pairs
    assert weights["orchestrator"] == weights["verifier"] != weights["draft"]


@pytest.mark.monitoring
def test_a_draft_that_was_killed_is_told_to_a_person_and_that_it_is_back_too(scene: Scene) -> None:
    fired = scene.webhook.alert("SlipstreamDraftAway")
    assert fired["labels"]["severity"] == "warning"
    assert fired["labels"]["address"] in fired["annotations"]["summary"]
    assert fired["annotations"]["runbook_url"] == "docs/alerts.md#slipstreamdraftaway"
    assert scene.webhook.alert("SlipstreamDraftAway", "resolved")["fingerprint"] == fired["fingerprint"]


@pytest.mark.monitoring
def test_a_verifier_that_was_killed_is_critical_and_so_is_that_turns_fail(scene: Scene) -> None:
    assert scene.webhook.alert("SlipstreamVerifierAway")["labels"]["severity"] == "critical"
    assert scene.failures == {"VERIFIER_LOST"}


@pytest.mark.monitoring
def test_restarts_are_told_by_job(scene: Scene) -> None:
    told = until(lambda: scene.webhook.alert("SlipstreamRestarted"), "a restart is told")
    assert told["labels"]["job"] in ("slipstream-draft", "slipstream-verifier")
