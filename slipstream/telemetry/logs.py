"""Log lines: text for people, or JSON for programs, with the session, turn and trace of a line."""

from __future__ import annotations

import logging
from typing import Literal

from pythonjsonlogger.json import JsonFormatter

LogFormat = Literal["text", "json"]


def configure_logging(name: str, level: str, log_format: LogFormat) -> None:
    """Set up the logging of a process; ``name`` is in every line."""
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(
            JsonFormatter(
                "%(levelname)s %(name)s %(message)s",
                rename_fields={"levelname": "level", "name": "logger"},
                static_fields={"service": name},
                timestamp=True,
            )
        )
    else:
        handler.setFormatter(logging.Formatter(f"%(asctime)s {name} %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=level, handlers=[handler])
