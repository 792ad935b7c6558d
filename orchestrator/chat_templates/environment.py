"""The environment that chat templates are written for: settings, tags and globals of transformers
5.23, sandboxed."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils


class TemplateRefusedError(jinja2.TemplateError):
    """The template refuses the messages."""


class Part(Mapping[str, str]):
    """A part of a message's content. A template may read it like a dict, but not print it as a
    value.

    transformers gives such a template a dict, and the model would read Python's or JSON's spelling
    of it.
    """

    def __init__(self, text: str) -> None:
        self._items = {"type": "text", "text": text}

    def __getitem__(self, name: str) -> str:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        raise TypeError("a part of a content is printed as a value")


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks what a model is trained on. Its body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own attribute)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Return a block that renders its body. Variables set inside stay inside, as in
        transformers."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """``dict`` without the attributes of a class."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        return dict(*values, **named)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        """Return `dict.fromkeys` of the values."""
        return dict.fromkeys(*values)


class _Namespace(jinja2.utils.Namespace):
    """``namespace`` without attributes that begin with an underscore."""

    def __init__(*values: Any, **named: Any) -> None:  # so that a template may name one `self`
        self, *rest = values
        attributes = dict(*rest, **named)
        for name in attributes:
            _Namespace._check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(
                f"a namespace takes no attribute {name!r}: it begins with an underscore"
            )


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateRefusedError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(8)
def compile_template(source: str) -> jinja2.Template:
    """Return the compiled template. Raises what Jinja and Python's compiler raise."""
    return _environment().from_string(source)


@functools.lru_cache(8)
def variables_of(source: str) -> frozenset[str]:
    """Return the names that the template reads from outside. Raises what Jinja raises."""
    return frozenset(jinja2.meta.find_undeclared_variables(_environment().parse(source)))


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment


def described(error: Exception) -> str:
    """Return an error of a template in one line, with the template's line if that is known."""
    line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else _line_of(error)
    what = " ".join(str(error).split()) or "no reason given"
    kind = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
    return f"{'' if line is None else f'line {line}: '}{kind}{what}"[:500]


def _line_of(error: Exception) -> int | None:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
