"""The metrics page: every instrument that the services expose."""

from __future__ import annotations

from slipstream.telemetry import instruments
from slipstream.telemetry.instruments import Instrument
from tools.reference.markdown import cell, generated, table

_HEAD = """# Metrics

Each service serves Prometheus text at `http://HOST:PORT/metrics` if `--metrics-address HOST:PORT`
is set. Several orchestrator processes behind one port have consecutive metrics ports. The gateway
serves them on its only port, without a token. The response also holds prometheus_client's metrics
of the process: memory, processor time, open files, start time.

OTLP sends the same metrics, but not the gateway's, every `OTEL_METRIC_EXPORT_INTERVAL` milliseconds if
`OTEL_METRICS_EXPORTER=otlp` or `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` is set. There a counter's name
has no `_total`.

Names end as vLLM's do where vLLM has the same metric. Counters and histograms count from the start
of the process. The last event of a turn counts generated, draft and accepted tokens the same way.
Rounds that a turn loses to a failure are counted under `outcome="failed"`. [Decision
63](../decisions/0063-the-target-continues-by-itself.md) says which metrics have had another meaning
before runs, and why.

PromQL for the usual questions:

```text
# acceptance rate
  rate(slipstream_spec_decode_num_accepted_tokens_total[5m])
/ rate(slipstream_spec_decode_num_draft_tokens_total[5m])

# mean acceptance length
1 + rate(slipstream_spec_decode_num_accepted_tokens_total[5m])
  / rate(slipstream_spec_decode_num_drafts_total[5m])

# acceptance at each position of the proposal
  rate(slipstream_spec_decode_num_accepted_tokens_per_pos_total[5m])
/ rate(slipstream_spec_decode_num_draft_tokens_per_pos_total[5m])

# mean number of items that are ready and sit out steps, by what they lack
sum by (reason) (rate(slipstream_item_waiting_seconds_total{reason=~"place|pages"}[1m]))

# tokens a second
sum(rate(slipstream_generation_tokens_total[1m]))
```
"""


def page() -> str:
    """Return the page."""
    parts = [generated("slipstream/telemetry/instruments.py"), _HEAD]
    for title, listed in (
        ("The orchestrator", instruments.OF_THE_ORCHESTRATOR),
        ("The verifier and the draft", instruments.OF_A_MODEL_SERVICE),
        ("The gateway", instruments.OF_THE_GATEWAY),
    ):
        rows = table(["name", "kind", "unit", "labels", "meaning"], (_row(instrument) for instrument in listed))
        parts.append(f"\n## {title}\n\n{rows}")
    removed = table(["what", "why"], ([name, cell(why)] for name, why in instruments.REMOVED.items()))
    parts.append(f"\n## Removed\n\n{removed}")
    return "".join(parts)


def _row(instrument: Instrument) -> list[str]:
    labels = ", ".join(f"`{label}`" for label in instrument.labels)
    return [f"`{instrument.exposed_name}`", instrument.kind.value, instrument.unit, labels, cell(instrument.text)]
