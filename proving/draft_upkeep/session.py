"""The steps of a session, each with what it shows."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from proving.chaos.clock import ClockOfDay
from proving.draft_upkeep.alert import ALERT, fires, promtool
from proving.draft_upkeep.hours import Hours
from proving.draft_upkeep.scale import Scale
from proving.draft_upkeep.traffic import CHAT, LOOKUP, Traffic, question, record
from slipstream.cli.local import LocalServices, PairSettings, free_address
from slipstream.cli.service_process import Service
from slipstream.client import Client
from slipstream.distilling.records import shard_paths
from slipstream.hosting.tokenizer_files import embedded_directory
from slipstream.interpreter import module_command
from training import corpus

_LAST_WEEK = 170
"""Hours from the first traffic to the change of the requests."""
_YESTERDAY = 24
_SHARD_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Acceptance of the task whose requests changed, and statuses of `slipstream drift`."""

    usual: float
    changed: float
    replaced: float
    drift_status: int
    last_drift_status: int
    is_kept: bool
    alert: bool | None
    """True if the alert fired; None without promtool."""
    last_alert: bool | None
    repeated_count: int
    changed_count: int


class Session:
    """A session in a folder of its own. ``say`` shows a line."""

    def __init__(self, folder: Path, scale: Scale, say: Callable[[str], None]) -> None:
        self._folder, self._scale, self._say = folder, scale, say
        self._collected, self._new_draft = folder / "collected", folder / "new-draft"
        self._clock = ClockOfDay(folder)
        symbols = [entry.symbol for entry in corpus.read(embedded_directory("target").parent / "symbols.jsonl")]
        random.Random("upkeep").shuffle(symbols)
        self._new, self._known = symbols[: scale.new_names], symbols[scale.new_names :]

    def run(self) -> Outcome:
        """Run all steps."""
        with ExitStack() as stack:
            metrics = free_address()
            local = stack.enter_context(LocalServices(self._pair(metrics)))
            client = stack.enter_context(Client(local.orchestrator_address))
            traffic = Traffic(client)
            hours = Hours(self._clock, metrics, client)
            self._serve_what_is_known(hours, traffic)
            self._serve_what_has_changed(hours, traffic)
            fell = self._alerts(hours, -1)
            status = self._drift(local)
            self._distil()
            is_kept = self._swap(local, traffic, stack)
            self._serve_again(hours, traffic)
            last_status, last_fell = self._drift(local), self._alerts(hours, self._last_hour)
            return self._outcome(hours, traffic, status, last_status, fell, last_fell, is_kept=is_kept)

    def _pair(self, metrics: str) -> PairSettings:
        collecting = ["--collect", str(self._collected), "--collect-text", "--collect-share", "1"]
        return PairSettings(
            target_flags=collecting,
            orchestrator_flags=["--metrics-address", metrics, "--anyone-operates"],
            store=str(self._folder / "sessions.db"),
            environment=self._clock.environment,
        )

    def _serve_what_is_known(self, hours: Hours, traffic: Traffic) -> None:
        scale = self._scale
        new = scale.hours_of_new_requests
        first = [-_LAST_WEEK - new + hour for hour in range(scale.hours_of_last_week)]
        last = [-_YESTERDAY - new + hour for hour in range(scale.hours_of_yesterday)]
        for index, hour in enumerate([*first, *last]):
            with hours.hour(hour):
                for task in (CHAT, LOOKUP):
                    traffic.send(task, question, self._some(self._known, index, scale.usual_turns))
        chat, lookup = (hours.acceptance(range(-999, -new), task) for task in (CHAT, LOOKUP))
        self._say(f"# {len(first)} hours a week ago and {len(last)} hours of yesterday, draft tokens accepted: ")
        self._say(f"# chat {chat:.3f}, lookup {lookup:.3f}")

    def _serve_what_has_changed(self, hours: Hours, traffic: Traffic) -> None:
        new = self._scale.hours_of_new_requests
        self._say(f"# from now on lookup asks like this: {record('os.path.join')}")
        for index, hour in enumerate(range(-new, 0)):
            with hours.hour(hour):
                traffic.send(CHAT, question, self._some(self._known, index, self._scale.usual_turns))
                traffic.send(LOOKUP, record, self._lookups)
        self._say(
            f"# after {new} h: chat {hours.acceptance(range(-new, 0), CHAT):.3f}, lookup {self._changed(hours):.3f}"
        )

    def _alerts(self, hours: Hours, hour: int) -> bool | None:
        if promtool() is None:
            self._say(f"# promtool is not installed: the rule of {ALERT} is not evaluated")
            return None
        found = fires(hours.spans, LOOKUP, hour, self._folder)
        self._say(f"# {ALERT}, by promtool over the metrics served: {'fires for task lookup' if found else 'quiet'}")
        return found

    def _drift(self, local: LocalServices) -> int:
        least = str(self._scale.least_tokens)
        return self._command("drift", "--address", local.orchestrator_address, "--least-tokens", least)

    def _distil(self) -> None:
        give_up = time.monotonic() + _SHARD_SECONDS
        while not shard_paths(self._collected):
            if time.monotonic() > give_up:
                raise TimeoutError(f"the verifier has written no shard to {self._collected}")
            time.sleep(1)
        time.sleep(40)  # the last sequences become a shard too
        flags = ["--target", "embedded", "--draft", "embedded", "--data", str(self._collected)]
        flags += ["--out", str(self._new_draft), "--temperature", "0", "--epochs", str(self._scale.epochs)]
        status = self._command("distill", *flags, "--learning-rate", "5e-4", "--batch-tokens", "1024")
        if status:
            raise RuntimeError(f"slipstream distill ended with status {status}")

    def _swap(self, local: LocalServices, traffic: Traffic, stack: ExitStack) -> bool:
        flags = ["--model", str(self._new_draft), "--device", "cpu", "--dtype", "bfloat16", "--threads", "1"]
        draft = Service("draft", "draft_service", free_address(), flags, self._clock.environment)
        stack.callback(draft.stop)
        draft.wait_until_healthy()
        self._clock.set(0)
        asked = [(CHAT, question, symbol) for symbol in self._some(self._known, 0, 20)]
        asked += [(LOOKUP, record, symbol) for symbol in self._lookups[:20]]
        random.Random("swap").shuffle(asked)
        flags = ["--address", local.orchestrator_address, "--running", draft.address, "--share", "0.5", "--keep"]
        with traffic.running(asked):
            status = self._command("swap", *flags, "--turns", str(self._scale.swap_turns))
        if status == 0:
            local.services["draft"].stop()
        return status == 0

    def _serve_again(self, hours: Hours, traffic: Traffic) -> None:
        for index in range(self._scale.hours_of_new_requests):
            with hours.hour(index + 1):
                traffic.send(CHAT, question, self._some(self._known, index, self._scale.usual_turns))
                traffic.send(LOOKUP, record, self._lookups)
        after = range(1, 999)
        chat, lookup = (hours.acceptance(after, task) for task in (CHAT, LOOKUP))
        self._say(f"# after the swap: chat {chat:.3f}, lookup {lookup:.3f}")

    def _outcome(
        self,
        hours: Hours,
        traffic: Traffic,
        status: int,
        last_status: int,
        alert: bool | None,
        last_alert: bool | None,
        *,
        is_kept: bool,
    ) -> Outcome:
        self._say(f"# {traffic.repeated_count} answers to repeated requests, of which {traffic.changed_count} changed")
        new = self._scale.hours_of_new_requests
        return Outcome(
            usual=hours.acceptance(range(-999, -new), LOOKUP),
            changed=self._changed(hours),
            replaced=hours.acceptance(range(1, 999), LOOKUP),
            drift_status=status,
            last_drift_status=last_status,
            is_kept=is_kept,
            alert=alert,
            last_alert=last_alert,
            repeated_count=traffic.repeated_count,
            changed_count=traffic.changed_count,
        )

    @property
    def _last_hour(self) -> int:
        return self._scale.hours_of_new_requests

    def _changed(self, hours: Hours) -> float:
        return hours.acceptance(range(-self._scale.hours_of_new_requests, 0), LOOKUP)

    @property
    def _lookups(self) -> Sequence[str]:
        """The names of an hour's lookups."""
        return [name for _, name in zip(range(self._scale.new_turns), cycle(self._new))]

    def _some(self, names: Sequence[str], index: int, count: int) -> Sequence[str]:
        start = index * count % max(1, len(names) - count)
        return names[start : start + count]

    def _command(self, *words: str) -> int:
        """Run a command of slipstream, and show it with its output."""
        shown = " ".join(words).replace(str(self._folder), ".")
        self._say(f"$ slipstream {shown}")
        environment = {**os.environ, "COLUMNS": "150", "NO_COLOR": "1"}
        done = subprocess.run(
            module_command("slipstream.cli", *words), capture_output=True, text=True, env=environment, check=False
        )
        for line in (done.stdout + done.stderr).replace(str(self._folder), ".").splitlines():
            self._say(line.rstrip())
        self._say(f"# exit status {done.returncode}")
        return done.returncode
