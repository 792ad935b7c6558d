"""The alert's rule, evaluated by promtool on the counters that an orchestrator served.

The counters were read at the beginning and the end of each hour with traffic. In between they are
taken to grow evenly.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from proving.draft_upkeep.hours import Counters, Span

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"
ALERT = "SlipstreamTaskAcceptanceFell"
_STEPS_AN_HOUR = 12
_JOB = 'job="slipstream-orchestrator"'


def promtool() -> str | None:
    """Return where promtool is; None if it is not installed."""
    return shutil.which("promtool")


def fires(spans: Sequence[Span], task: str, hour: int, folder: Path) -> bool:
    """Return whether the alert fires for a task at the end of an hour."""
    expected = f'ALERTS{{alertname="{ALERT}", alertstate="firing", {_JOB}, severity="warning", task="{task}"}}'
    first = min(span.hour for span in spans)
    case = {
        "interval": "5m",
        "input_series": [{"series": name, "values": values} for name, values in _series(spans, first).items()],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertname="{ALERT}", alertstate="firing"}}',
                "eval_time": f"{hour + 1 - first}h",
                "exp_samples": [{"labels": expected, "value": 1}],
            }
        ],
    }
    file = folder / "alert.test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "5m", "tests": [case]}))
    tool = promtool()
    assert tool is not None, "the caller has looked"
    done = subprocess.run([tool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    if done.returncode and "got:" not in done.stdout + done.stderr:
        raise RuntimeError(f"promtool failed: {done.stdout}{done.stderr}")
    return done.returncode == 0


def _series(spans: Sequence[Span], first: int) -> dict[str, str]:
    names = sorted({name for span in spans for name in span.after})
    return {_label(name): _values(spans, name, first) for name in names}


def _label(name: tuple[str, str, str]) -> str:
    kind, draft, task = name
    return f'slipstream_task_{kind}_tokens_total{{{_JOB}, instance="o:9464", task="{task}", draft="{draft}"}}'


def _values(spans: Sequence[Span], name: tuple[str, str, str], first: int) -> str:
    """Return promtool's notation of a counter: flat between hours, and rising in them."""
    values: list[float] = []
    for span in sorted(spans):
        start, end = _value(span.before, name), _value(span.after, name)
        values += [start] * ((span.hour - first) * _STEPS_AN_HOUR + 1 - len(values))
        values += [start + (end - start) * step / _STEPS_AN_HOUR for step in range(1, _STEPS_AN_HOUR + 1)]
    return " ".join(f"{value:g}" for value in values)


def _value(counters: Counters, name: tuple[str, str, str]) -> float:
    return counters.get(name, 0.0)
