"""Show what an autoscaler sees of an orchestrator and its verifiers under load.

The table says which metric shows that turns wait, and what more verifiers bring. The services are
the real ones over gRPC. The model is arithmetic with a set time for a forward. Clients generate one
turn after another without a draft. The benchmark reads the metrics twice a second and averages
them. ``wanted`` is the number of verifiers that deploy/kubernetes/components/autoscaling asks for:
once by the orchestrator's metrics alone, and once with the share of items that sit out steps.
"""

from __future__ import annotations

import argparse
import math
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import fmean

from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

from benchmarks.report import Report, add_output
from slipstream.cli.local import free_address
from slipstream.cli.service_process import Service
from slipstream.client import Client, PeerError, Settings

_QUEUE_TARGET = 8
_RATIO_TARGET = 0.8
_WAITING_TARGET = 0.25


@dataclass
class Seen:
    """Values of the metrics, one for each look."""

    orchestrator_waiting: list[float] = field(default_factory=list)
    verifier_waiting: list[float] = field(default_factory=list)
    """Items that had no part in the last step, as a share of all items in the verifiers."""
    ratio: list[float] = field(default_factory=list)
    """Used of what turns share: places or memory for KV, the scarcer."""
    refused_count: float = 0.0


def samples(address: str, name: str) -> dict[str, float]:
    """Return a metric's values by its first label."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        found = [sample for family in families for sample in family.samples if sample.name == name]
    return {next(iter(sample.labels.values()), ""): sample.value for sample in found}


def look(orchestrator: str, verifiers: Sequence[str], seen: Seen) -> None:
    """Read all metrics once."""
    seen.orchestrator_waiting.append(samples(orchestrator, "slipstream_num_requests_waiting")[""])
    kinds = ("waiting", "running", "waiting_by_reason")
    counts = [[samples(address, f"slipstream_num_requests_{kind}") for kind in kinds] for address in verifiers]
    item_count = sum(waiting[""] + running[""] for waiting, running, _ in counts)
    without_part = sum(reasons["place"] + reasons["pages"] for _, _, reasons in counts)
    seen.verifier_waiting.append(without_part / max(1, item_count))
    used, limits = (samples(orchestrator, f"slipstream_admission_{name}") for name in ("used", "limit"))
    seen.ratio.append(max(used[name] / limits[name] for name in ("turns", "kv_tokens") if limits.get(name)))
    seen.refused_count = sum(samples(orchestrator, "slipstream_admission_refused_total").values())


@contextmanager
def serving(count: int, options: argparse.Namespace) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the addresses of the orchestrator and of all metrics."""
    model = f"arithmetic:ends=0&forward_ms={options.forward_ms:g}&row_us={options.row_us:g}"
    addresses, metrics = ([free_address() for _ in range(count)] for _ in range(2))
    with ExitStack() as stack:
        services = []
        for address, shown in zip(addresses, metrics, strict=True):
            flags = ["--model", model, "--kv-memory-mib", "8", "--metrics-address", shown, *options.verifier_flag]
            services.append(Service("verifier", "verifier_service", address, flags, {}))
            stack.callback(services[-1].stop)
        shown = free_address()
        flags = ["--verifier", ",".join(addresses), "--draft", "", "--store", "memory", "--metrics-address", shown]
        flags += options.orchestrator_flag
        orchestrator = Service("orchestrator", "orchestrator", free_address(), flags, {})
        stack.callback(orchestrator.stop)
        for service in (*services, orchestrator):
            service.wait_until_healthy()
        yield orchestrator.address, shown, metrics


def ask(address: str, tokens: int, over: threading.Event) -> None:
    """Run one client, which returns when it is told to retry."""
    with Client(address) as client:
        while not over.is_set():
            try:
                client.generate("hello", Settings(max_token_count=tokens, draft_length=0)).wait()
            except PeerError as error:
                over.wait(error.retry_after or 1.0)


def measure(verifier_count: int, clients: int, options: argparse.Namespace) -> Seen:
    """Measure with ``clients`` clients beside ``verifier_count`` verifiers."""
    seen, over = Seen(), threading.Event()
    with serving(verifier_count, options) as (address, shown, metrics):
        asking = [threading.Thread(target=ask, args=(address, options.tokens, over)) for _ in range(clients)]
        for thread in asking:
            thread.start()
        time.sleep(options.settling)
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            look(shown, metrics, seen)
            time.sleep(0.5)
        over.set()
        for thread in asking:
            thread.join()
    return seen


def wanted(count: int, seen: Seen) -> tuple[int, int]:
    """Return the wanted number of verifiers by the orchestrator alone, and with the items that sit
    out steps. Kubernetes changes nothing within a tenth."""

    def scaled(ratio: float) -> int:
        return count if abs(ratio - 1) <= 0.1 else max(1, math.ceil(count * ratio))

    waiting = fmean(seen.orchestrator_waiting)
    by_queue = scaled(waiting / (_QUEUE_TARGET * count))
    by_orchestrator = max(by_queue, scaled(fmean(seen.ratio) / _RATIO_TARGET))
    return by_orchestrator, max(by_orchestrator, scaled(fmean(seen.verifier_waiting) / _WAITING_TARGET))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscaling", description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 24, 64], help="that ask at a time")
    parser.add_argument("--verifiers", type=int, nargs="+", default=[1, 2], help="beside each")
    parser.add_argument("--seconds", type=float, default=20, help="that are looked at")
    parser.add_argument("--settling", type=float, default=5, help="before them")
    parser.add_argument("--tokens", type=int, default=40, help="of an answer")
    parser.add_argument("--forward-ms", type=float, default=30)
    parser.add_argument("--row-us", type=float, default=500, help="each token of a forward adds")
    parser.add_argument("--verifier-flag", action="append", default=[], help="as --verifier-flag=--max-step-tokens=8")
    parser.add_argument("--orchestrator-flag", action="append", default=[])
    add_output(parser)
    options = parser.parse_args(arguments)
    report = Report("autoscaling", __doc__ or "", options.output)
    table = Table(title="what an autoscaler sees")
    for column in ("clients", "verifiers", "waiting: orchestrator", "items sitting out", "limit used", "refused"):
        table.add_column(column, justify="right")
    table.add_column("wanted by the orchestrator", justify="right")
    table.add_column("wanted in all", justify="right")
    for clients in options.clients:
        for count in options.verifiers:
            seen = measure(count, clients, options)
            figures = (
                f"{fmean(seen.orchestrator_waiting):.1f}",
                f"{fmean(seen.verifier_waiting):.0%}",
                f"{fmean(seen.ratio):.0%}",
                f"{seen.refused_count:.0f}",
                *map(str, wanted(count, seen)),
            )
            table.add_row(str(clients), str(count), *figures)
    report.show(table)


if __name__ == "__main__":
    main()
