"""Log lines: text for people, or JSON for programs, with the session, turn and trace of a line."""

from __future__ import annotations

import logging
from typing import Literal

from pythonjsonlogger.json import JsonFormatter

LogFormat = Literal["text", "json"]


def configure_logging(name: str, level: str, log_format: LogFormat, rank: int | None = None) -> None:
    """Set up the logging of a process; ``name`` is in every line, and its rank if it has one."""
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(
            JsonFormatter(
                "%(levelname)s %(name)s %(message)s",
                rename_fields={"levelname": "level", "name": "logger"},
                static_fields={"service": name} | ({} if rank is None else {"rank": rank}),
                timestamp=True,
            )
        )
    else:
        shown = name if rank is None else f"{name} rank {rank}"
        handler.setFormatter(logging.Formatter(f"%(asctime)s {shown} %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=level, handlers=[handler])
