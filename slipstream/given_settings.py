"""The settings of a process, read from its flags and environment variables."""

from __future__ import annotations

import sys
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings

SettingsT = TypeVar("SettingsT", bound=BaseSettings)


def read_settings(kind: type[SettingsT], service_name: str) -> SettingsT:
    """Return the settings of flags and environment variables. Exits with one readable line if a
    value is wrong."""
    try:
        return kind()
    except ValidationError as error:
        sys.exit(f"{service_name}: {sentences(error)}")


def sentences(error: ValidationError) -> str:
    """Return what is wrong with the values, each by its flag, in one line."""
    return "; ".join(map(_sentence, error.errors()))


def _sentence(fault: ErrorDetails) -> str:
    says = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not fault["loc"]:  # settings that do not fit each other
        return f"--{says}"
    flag = "--" + ".".join(map(str, fault["loc"])).replace("_", "-")
    if fault["type"] == "missing":
        return f"{flag} is needed; --help explains it"
    return f"{flag} {says}, but is {fault['input']!r}"
