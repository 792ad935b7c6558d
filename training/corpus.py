"""The question-and-answer corpus: symbols of Python's standard library and the first paragraph of
their docstrings.

The corpus is read once from the running interpreter and stored beside the models as
``symbols.jsonl``. So evaluation and benchmarks ask the same questions on every Python version.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = """
    abc argparse asyncio base64 bisect calendar collections concurrent.futures contextlib copy csv dataclasses datetime
    difflib enum fnmatch functools getpass glob gzip hashlib heapq hmac html importlib inspect io ipaddress itertools
    json logging math mimetypes operator os os.path pathlib pickle platform pprint queue random re
    secrets select shelve shlex shutil socket sqlite3 statistics string struct subprocess sys tarfile
    tempfile textwrap threading time timeit traceback types unicodedata unittest urllib.parse urllib.request uuid
    warnings weakref zipfile zlib
""".split()

BUILTIN_TYPES = (str, int, float, list, tuple, dict, set)
METHOD_TYPES = {
    "collections": ("Counter", "OrderedDict", "deque"),
    "datetime": ("date", "datetime", "timedelta"),
    "pathlib": ("Path",),
    "threading": ("Thread", "Event", "Condition"),
    "queue": ("Queue",),
    "logging": ("Logger",),
    "subprocess": ("Popen",),
    "zipfile": ("ZipFile",),
    "io": ("StringIO",),
    "unittest": ("TestCase",),
}
# Names a reader would not ask about: in-place twins of other operators, process-status macros,
# extended attributes.
SKIPPED = re.compile(
    r"operator\.(i[a-z]+|__\w+)$|os\.(W[A-Z]|sched_|posix_|[gs]etxattr|removexattr|listxattr|set(re[su]|e[gu])|get(res|e[gu])"
    r"|(minor|major|makedev|openpty|login_tty|forkpty|pidfd_open|memfd_create|eventfd.*|tc[gs]etpgrp|splice|plock)$)"
    r"|socket\.(CMSG|AddressF|AddressI|Msg|Socket[KT])|inspect\.(is|_)|math\.(perm|isqrt)$|typing\.|unicodedata\.UCD"
)

SIGNATURE = re.compile(r"^[\w.]+\(.*\)( *-+> *.*)?$")
INLINE_SIGNATURE = re.compile(r"^[\w.]+\([^)]*\)\s*(-+>\s*[\w\[\], .|]+?)?\s*(--|:)\s*")
FRAGMENT = re.compile(r"^[(\[]|^(async )?\w+\([^)]*\)$|^use module\.|^the module is")
"""Pattern of text that is not prose: the rest of a signature, or of another paragraph."""
INTERVAL = re.compile(r"\[[^\[\]()]*\)")
MAX_ANSWER_CHARACTERS = 200


@dataclass(frozen=True)
class Entry:
    """One symbol, as a user would type it, and the answer the target should give."""

    symbol: str
    answer: str


def _closes_more_than_it_opens(text: str) -> bool:
    text = INTERVAL.sub("", text)
    return text.count(")") > text.count("(")


def first_paragraph(docstring: str) -> str | None:
    """Return the docstring's first paragraph of prose on one line, cut at a sentence end; None if
    there is none."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = paragraph.splitlines()
        while lines and SIGNATURE.match(lines[0].strip()):
            lines.pop(0)
        text = INLINE_SIGNATURE.sub("", " ".join(" ".join(lines).split()))
        if len(text) < 12 or text.startswith(">") or FRAGMENT.match(text) or _closes_more_than_it_opens(text):
            continue
        answer = ""
        for sentence in re.split(r"(?<=[.!?])\s+", text):
            if answer and len(answer) + len(sentence) + 1 > MAX_ANSWER_CHARACTERS:
                break
            answer = f"{answer} {sentence}".lstrip()
        if len(answer) > MAX_ANSWER_CHARACTERS or not answer.isascii():
            return None
        return answer.rstrip(":")
    return None


def _public_members(owner: Any, *, only_own: bool) -> list[tuple[str, Any]]:
    members = vars(owner) if only_own else {name: getattr(owner, name) for name in dir(owner)}
    return [(name, member) for name, member in sorted(members.items()) if not name.startswith("_")]


def _exported(module: ModuleType) -> list[tuple[str, Any]] | None:
    """Return what a module declares public, or None. Reading a name may load it."""
    names = getattr(module, "__all__", None)
    return (
        None if names is None else [(name, getattr(module, name)) for name in sorted(names) if not name.startswith("_")]
    )


def _document(entries: dict[str, str], symbol: str, member: Any) -> None:
    docstring = inspect.getdoc(member)
    if docstring is None or not (callable(member) or inspect.isdatadescriptor(member) or inspect.ismodule(member)):
        return
    if str(getattr(member, "__module__", None) or "builtins").split(".")[0] not in sys.stdlib_module_names:
        return  # another library has put it there
    if SKIPPED.match(symbol) or (isinstance(member, type) and docstring == inspect.getdoc(object)):
        return
    answer = first_paragraph(docstring)
    if answer is not None:
        entries.setdefault(symbol, answer)


def collect() -> list[Entry]:
    """Return the chosen modules and their documented public symbols, each named as it is imported
    (``os.path.join``)."""
    entries: dict[str, str] = {}
    for name, member in _public_members(builtins, only_own=False):
        if not (isinstance(member, type) and issubclass(member, BaseException)) and name not in (
            "copyright",
            "credits",
        ):
            _document(entries, name, member)
    for kind in BUILTIN_TYPES:
        for name, member in _public_members(kind, only_own=True):
            _document(entries, f"{kind.__name__}.{name}", member)
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        exported = _exported(module)
        _document(entries, module_name, module)
        for name, member in exported or _public_members(module, only_own=True):
            if inspect.ismodule(member):
                continue
            if exported is None and str(getattr(member, "__module__", module_name)).split(".")[0].lstrip("_") not in (
                module_name.split(".")[0],
                "posix",
                "posixpath",
                "time",
            ):
                continue  # an import of another module's name
            if isinstance(member, type) and issubclass(member, BaseException):
                continue
            _document(entries, f"{module_name}.{name}", member)
        for type_name in METHOD_TYPES.get(module_name, ()):
            for name, member in _public_members(getattr(module, type_name), only_own=True):
                _document(entries, f"{type_name}.{name}", member)
    return [Entry(symbol, answer) for symbol, answer in entries.items()]


def write(path: Path, entries: list[Entry]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps({"symbol": e.symbol, "answer": e.answer}) + "\n" for e in entries))


def read(path: Path) -> list[Entry]:
    """Return the entries that `write` wrote."""
    return [Entry(**json.loads(line)) for line in path.read_text().splitlines()]
