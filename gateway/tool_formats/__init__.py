"""Formats in which models write calls of tools, by vLLM's names. A new format is one file, and one
line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gateway.tool_formats.format import ToolFormat
from gateway.tool_formats.hermes import HermesFormat
from gateway.tool_formats.llama3 import Llama3Format

ToolCallParser = Literal["auto", "hermes", "llama3_json", "off"]
TOOL_FORMATS: Mapping[str, ToolFormat] = {"hermes": HermesFormat(), "llama3_json": Llama3Format()}
