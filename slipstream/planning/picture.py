"""A picture of a plan: tokens a second over acceptance."""

from __future__ import annotations

from pathlib import Path

from slipstream.extras import require
from slipstream.planning.plan import Chosen, Plan


def draw(plan: Plan, path: Path) -> None:
    """Write an SVG with a panel for each way to run the pair. Exits with a line if matplotlib is
    not installed; OSError if the file cannot be written."""
    require("slipstream", "plot")
    import matplotlib  # this import takes a second

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "slipstream"  # the same plan makes the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(plan.ways), figsize=(5.5 * len(plan.ways), 4.2), layout="constrained", sharey=True, squeeze=False
    )
    for axis, way in zip(panels.flat, plan.ways, strict=True):
        plain = max(speed.plain for speed in way.speeds)
        axis.axhline(plain, color="black", linestyle="--", label="plain")
        for label, points in _lines(way).items():
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
        axis.set(title=f"{way.placement}", xlabel="acceptance", ylim=(0, None))
        axis.grid(alpha=0.3)
        axis.legend()
    count = plan.question.session_count
    of = "one session" if count == 1 else f"{count} sessions together"
    panels.flat[0].set_ylabel(f"tokens/s of {of}, simulated")
    pair = plan.question.pair
    figure.suptitle(f"{pair.target.shape.name} with {pair.draft.shape.name} as its draft")
    try:
        figure.savefig(path, format="svg", metadata={"Date": None})
    finally:
        pyplot.close(figure)


def _lines(way: Chosen) -> dict[str, list[tuple[float, float]]]:
    """Return acceptance and tokens a second of each line, by its label."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for speed in way.speeds:
        trip = f"draft on its own device, {speed.round_trip * 1e3:g} ms away"
        label = "draft on the target's device" if way.placement.is_shared else trip
        lines.setdefault(label, []).append((speed.acceptance, speed.hinted))
    return lines
