"""A picture of a load: how the times of all answers are distributed."""

from __future__ import annotations

from pathlib import Path

from slipstream.bench.plan import Findings, Outcome
from slipstream.extras import require


def draw(findings: Findings, path: Path) -> None:
    """Write a PNG with the cumulative distribution of each time. Exits with a line if matplotlib is
    not installed; OSError if the file cannot be written."""
    require("slipstream", "plot")
    import matplotlib  # this import takes a second

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    panels = {"TTFT": "ttft", "ITL": "itl", "TPOT": "tpot", "end to end": "e2el"}
    for axis, (title, name) in zip(axes.flat, panels.items(), strict=True):
        for outcome in findings.outcomes:
            times = sorted(_times(outcome, name))
            shares = [(index + 1) / len(times) for index in range(len(times))]
            axis.step(times, shares, where="post", label=outcome.address)
        axis.set(title=title, xlabel="milliseconds", ylabel="share of all", ylim=(0, 1), xlim=(0, None))
        axis.grid(alpha=0.3)
    axes.flat[0].legend()
    figure.savefig(path, dpi=120, format="png")
    pyplot.close(figure)


def _times(outcome: Outcome, name: str) -> list[float]:
    whole = [record for record in outcome.records if not record.error and record.chunks]
    if name == "itl":
        return [gap * 1e3 for record in whole for gap in record.itl]
    return [value * 1e3 for record in whole if (value := getattr(record, name)) is not None]
