"""Limits of the compilation of one structure, as flags and environment variables."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field
from pydantic_settings import BaseSettings

from slipstream.sampling.structure import MAX_SOURCE_BYTES


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """The most that one structure may take."""

    seconds: float = 2.0
    memory_mib: int = 64
    source_bytes: int = MAX_SOURCE_BYTES


class StructureSettings(BaseSettings):
    """The limits as settings, the same for all three services."""

    structure_compile_seconds: float = Field(
        2,
        gt=0,
        le=600,
        description="processor time in which a JSON schema, regex, grammar or list of choices must compile; one that takes "
        "longer is refused",
    )
    structure_memory_mib: int = Field(
        64, ge=1, description="memory in MiB in which a structure must compile; one that takes more is refused"
    )
    structure_source_bytes: int = Field(
        MAX_SOURCE_BYTES, ge=1, le=MAX_SOURCE_BYTES, description="longest source of a structure in bytes of UTF-8"
    )

    @property
    def compile_limits(self) -> CompileLimits:
        """The most that one structure may take."""
        return CompileLimits(self.structure_compile_seconds, self.structure_memory_mib, self.structure_source_bytes)
