"""What looks at turns: traces, totals for metrics, the ring for ``slipstream trace``, log lines.
Turns know none of them."""
