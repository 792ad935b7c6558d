"""The page of ``slipstream serve``'s flags: ours, vLLM's that have no effect, and vLLM's that are
refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slipstream.cli.flags import Flag
from slipstream.cli.serve_flags import OURS
from slipstream.cli.vllm_flags import ACCEPTED, REFUSED
from tools.reference.markdown import cell, generated, table

_HEAD = """# Flags of slipstream serve

`slipstream serve MODEL` ([guide](../guides/serve.md)) takes the flags of `vllm serve` beside its
own, with dashes or underscores. Any other flag is refused by its name.
"""

_SECTIONS = (
    ("Taken", "", "meaning", OURS),
    (
        "Accepted without effect",
        "These flags of vLLM would change nothing here. The command says so in a line and goes on.\n\n",
        "why",
        ACCEPTED,
    ),
    (
        "Refused",
        "These flags of vLLM ask for what is not here. The command ends with status 1 and this line.\n\n",
        "why, and what to do instead",
        REFUSED,
    ),
)


def page() -> str:
    """Return the page."""
    parts = [generated("slipstream/cli/serve_flags.py and vllm_flags.py"), _HEAD]
    for title, text, meaning, flags in _SECTIONS:
        parts += [f"\n## {title}\n\n", text, table(["flag", "value", meaning], _rows(flags))]
    return "".join(parts)


def _rows(flags: Iterable[Flag]) -> Iterator[list[str]]:
    for flag in flags:
        says = flag.says
        if flag.default is not None:
            says += f". Default: `{flag.default}`"
        if flag.harmless:
            says += f". Accepted: {', '.join(f'`{value}`' for value in flag.harmless)}"
        if flag.short:
            says += f". Also `{flag.short}`"
        yield [f"`{flag.name}`", f"`{flag.takes}`" if flag.takes else "", cell(says)]
