"""What a service measures of its model as it starts."""

from __future__ import annotations

from slipstream.engine.arithmetic import ArithmeticBackend, ArithmeticSettings
from slipstream.engine.engine import Engine


def engine(settings: str) -> Engine:
    return Engine(ArithmeticBackend(ArithmeticSettings.parse(f"arithmetic:{settings}")), kv_memory_mib=1)


def test_a_slow_model_is_measured_for_longer_than_a_quick_one() -> None:
    slow = engine("forward_ms=10")
    points = slow.profile(0.015)
    assert [count for count, _ in points] == [1, 8, 16, 24, 32, 40, 48, 56, 64, 128, 256]
    assert all(seconds >= 0.01 for _, seconds in points)
    assert slow.step_count == 0 and slow.pool.counts().held == 0


def test_a_profile_ends_at_what_its_context_holds() -> None:
    assert [count for count, _ in engine("context=20").profile(1)] == [1, 8, 16]
