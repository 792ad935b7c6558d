"""Records of single answers as their client saw them, in seconds of the monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Draft tokens of an answer or of many, as the server reports them."""

    draft_tokens: int
    """Draft tokens that the server verified."""
    accepted_tokens: int
    """Draft tokens that it accepted."""
    steps: int
    """Steps that verified at least one draft token."""

    @property
    def rate(self) -> float | None:
        """Accepted draft tokens as a share of all; None without any."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def mean_length(self) -> float | None:
        """Tokens that a step with draft tokens commits, as vLLM counts them: 1 + accepted / steps.
        None without such steps."""
        return 1 + self.accepted_tokens / self.steps if self.steps else None

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            self.steps + other.steps,
        )


@dataclass(slots=True)
class Record:
    """One request and its answer. A request that failed has an ``error``, and its times do not
    count."""

    intended: float
    """Moment at which the schedule wants the request to start: all latencies count from here."""
    sent: float = 0.0
    """Moment at which the client began to send it."""
    chunks: list[float] = field(default_factory=list)
    """Moments at which chunks with a part of the answer came."""
    ended: float = 0.0
    """Moment of the last event that belongs to the answer."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    counted: bool = True
    """False if the server did not count the tokens; each chunk then counts as one."""
    acceptance: Acceptance | None = None
    error: str = ""
    """Kind of its failure: a gRPC reason, an HTTP status with OpenAI's code, or a lost
    connection."""
    retry_after: float | None = None
    """Seconds for which the server asks to wait before the next request, if it refused this one."""

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.chunks[0] - self.intended

    @property
    def e2el(self) -> float:
        """End-to-end latency."""
        return self.ended - self.intended

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first one; None for an answer of one token."""
        return (self.e2el - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies: the time from each chunk to the next one."""
        return [later - earlier for earlier, later in zip(self.chunks, self.chunks[1:], strict=False)]

    def fail(self, error: str, retry_after: float | None = None) -> None:
        """Note that the request failed."""
        self.error, self.retry_after = error, retry_after
