"""Write docs/reference/metrics.md from the table of instruments; with ``--check`` only say whether it is up
to date."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from slipstream.telemetry import instruments
from slipstream.telemetry.instruments import Instrument

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"

_HEAD = """# Metrics

Every service serves Prometheus text at `http://HOST:PORT/metrics` where `--metrics-address HOST:PORT` (or
`SLIPSTREAM_ORCHESTRATOR_METRICS_ADDRESS`, `SLIPSTREAM_VERIFIER_METRICS_ADDRESS`, `SLIPSTREAM_DRAFT_METRICS_ADDRESS`) says
so; of several orchestrator processes behind one port each has the next one. The same go out by OTLP, every
`OTEL_METRIC_EXPORT_INTERVAL` milliseconds, where `OTEL_METRICS_EXPORTER=otlp` or `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` is set;
there a counter's name has no `_total`. Beside them stand prometheus_client's own of the process: memory, processor time, open
files, when it began.

Names end as vLLM's do where vLLM has the like. Counters and histograms count since the process began. In PromQL:

```
# acceptance rate
  rate(slipstream_spec_decode_num_accepted_tokens_total[5m])
/ rate(slipstream_spec_decode_num_draft_tokens_total[5m])

# mean acceptance length
1 + rate(slipstream_spec_decode_num_accepted_tokens_total[5m]) / rate(slipstream_spec_decode_num_drafts_total[5m])

# acceptance at each place of the proposal
  rate(slipstream_spec_decode_num_accepted_tokens_per_pos_total[5m])
/ rate(slipstream_spec_decode_num_draft_tokens_per_pos_total[5m])

# tokens a second
sum(rate(slipstream_generation_tokens_total[1m]))
```

What they say of a turn is what its last event says: generated tokens, draft tokens and accepted tokens are equal to the token.
Rounds that a turn lost to a failure bring nothing and are counted under `outcome="failed"`.
This page is made by `python tools/make_metrics_page.py`; `make check` holds it against the code.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, table in (
        ("The orchestrator's", instruments.OF_THE_ORCHESTRATOR),
        ("The verifier's and the draft's", instruments.OF_A_MODEL_SERVICE),
    ):
        parts.append(f"\n## {title}\n\n| name | kind | unit | labels | what it says |\n|---|---|---|---|---|\n")
        parts.extend(_row(instrument) for instrument in table)
    return "".join(parts)


def _row(instrument: Instrument) -> str:
    labels = ", ".join(f"`{label}`" for label in instrument.labels)
    return f"| `{instrument.exposed_name}` | {instrument.kind.value} | {instrument.unit} | {labels} | {instrument.text} |\n"


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    if "--check" in arguments:
        if PAGE.exists() and PAGE.read_text() == page():
            return 0
        print(f"{PAGE.name} is not what the instruments say: run python tools/make_metrics_page.py", file=sys.stderr)
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
