"""A server's log has no traceback of what any caller can bring about by leaving."""

from __future__ import annotations

import logging

import pytest
from grpc._cython.cygrpc import ExecuteBatchError  # type: ignore[import-not-found]

import slipstream.rpc.server  # noqa: F401  (adds the filter)


@pytest.mark.parametrize("logger", ["grpc._cython.cygrpc", "asyncio"])
@pytest.mark.parametrize(("error", "lines"), [(ExecuteBatchError("gone"), 0), (ValueError("a fault"), 1), (None, 1)])
def test_that_a_caller_has_gone_is_no_line_and_all_else_is(
    logger: str, error: Exception | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger(logger).error("it failed", exc_info=error)
    assert len(caplog.records) == lines
