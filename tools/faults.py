"""The faults that `tools/plant_faults.py` plants in a source file: each one a small edit of its
text.

No library is used. mutmut and cosmic-ray know no SQL, which holds the store's conditions. They
choose a fault's tests by a run of the whole suite with coverage, which takes half an hour.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OTHER_SUM: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_SQL_CONDITION = re.compile(r"\b(WHERE|AND|OR) (\(?)(\w+(?:\.\w+)?) (=|<>|<=|<|>=|>) (\?|\d+|''|\w+\.\w+)")
_SQL_OPPOSITE = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "=": "<>", "<>": "="}
_TOLD = ("log", "logger", "warnings")
"""Calls that only print or log. No test has to notice their absence."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One edit of a file: ``text`` replaces the characters from ``start`` to ``end``."""

    path: str
    line: int
    start: int
    end: int
    text: str
    kind: str
    was: str
    """The changed line, without its indentation."""

    def planted_in(self, source: str) -> str:
        """Return the source with this fault."""
        return source[: self.start] + self.text + source[self.end :]

    @property
    def becomes(self) -> str:
        """Return the text that the fault puts there, on one line."""
        return " ".join(self.text.split())

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.was}  -->  {self.becomes}"


def faults_of(path: str, source: str) -> list[Fault]:
    """Return all faults for a file, in the order of its text."""
    found = [fault for fault in _Finder(path, source).found() if _compiles(fault.planted_in(source))]
    return sorted(set(found), key=lambda fault: (fault.start, fault.end, fault.kind, fault.text))


def _compiles(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


class _Finder:
    def __init__(self, path: str, source: str) -> None:
        self._path, self._source = path, source
        self._tree = ast.parse(source)
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def found(self) -> Iterator[Fault]:
        for statement in self._tree.body:  # a constant of the module is a tuned number, and an import is no behaviour
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from self._in(statement)
        yield from self._in_sql()

    def _in(self, node: ast.AST) -> Iterator[Fault]:
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert) or _is_told(node) or _is_docstring(node):
            if isinstance(node, ast.Raise):
                yield self._fault(node, "dropped raise", "pass")
            return
        yield from self._at(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._in(child)

    def _at(self, node: ast.AST) -> Iterator[Fault]:
        match node:
            case ast.Compare(ops=[operator]):
                changed = ast.Compare(node.left, [_OPPOSITE[type(operator)]()], node.comparators)
                yield self._fault(node, "other comparison", f"({ast.unparse(changed)})")
            case ast.BoolOp(op=operator, values=values):
                other = ast.Or() if isinstance(operator, ast.And) else ast.And()
                yield self._fault(node, "and for or", f"({ast.unparse(ast.BoolOp(other, values))})")
                for index in range(len(values)):
                    left = values[:index] + values[index + 1 :]
                    kept = left[0] if len(left) == 1 else ast.BoolOp(operator, left)
                    yield self._fault(node, "dropped condition", f"({ast.unparse(kept)})")
            case ast.UnaryOp(op=ast.Not()):
                yield self._fault(node, "dropped not", f"({ast.unparse(node.operand)})")
            case ast.BinOp(op=operator) if type(operator) in _OTHER_SUM and not _is_text(node):
                changed_sum = ast.BinOp(node.left, _OTHER_SUM[type(operator)](), node.right)
                yield self._fault(node, "other operator", f"({ast.unparse(changed_sum)})")
            case ast.Constant(value=bool()):
                yield self._fault(node, "other constant", str(not node.value))
            case ast.Constant(value=int() | float() as number):
                yield self._fault(node, "number one more", repr(number + 1))
                yield self._fault(node, "number one less", f"({number - 1!r})")
            case ast.IfExp():
                swapped = ast.IfExp(node.test, node.orelse, node.body)
                yield self._fault(node, "swapped branches", f"({ast.unparse(swapped)})")
            case ast.If() | ast.While():
                yield self._fault(node.test, "always", "True")
                yield self._fault(node.test, "never", "False")
            case ast.Call(args=[ast.Name() | ast.Attribute() as first, ast.Name() | ast.Attribute() as second, *_]):
                yield self._swapped(first, second)
            case ast.Return(value=ast.expr() as value) if not _is_none(value):
                yield self._fault(node, "returns nothing", "return None")
            case ast.Continue() | ast.Break() | ast.AugAssign() | ast.Delete():
                yield self._fault(node, "dropped statement", "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield self._fault(node, "dropped statement", "pass")
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield self._fault(node, "dropped statement", "pass")
            case _:
                pass

    def _in_sql(self) -> Iterator[Fault]:
        for node in ast.walk(self._tree):
            if _is_docstring(node) or not isinstance(node, ast.JoinedStr | ast.Constant):
                continue
            if isinstance(node, ast.Constant) and not isinstance(node.value, str):
                continue
            start, end = self._span(node)
            for found in _SQL_CONDITION.finditer(self._source, start, end):
                word, bracket, name, operator, value = found.groups()
                if word != "OR":
                    text = f"{word} {bracket}({name} {operator} {value} OR 1 = 1)"
                    yield self._edit(found.start(), found.end(), "dropped SQL condition", text)
                text = f"{word} {bracket}{name} {_SQL_OPPOSITE[operator]} {value}"
                yield self._edit(found.start(), found.end(), "other SQL comparison", text)

    def _swapped(self, first: ast.expr, second: ast.expr) -> Fault:
        (start, middle), (other, end) = self._span(first), self._span(second)
        text = self._source[other:end] + self._source[middle:other] + self._source[start:middle]
        return self._edit(start, end, "swapped arguments", text)

    def _fault(self, node: ast.expr | ast.stmt, kind: str, text: str) -> Fault:
        return self._edit(*self._span(node), kind, text)

    def _edit(self, start: int, end: int, kind: str, text: str) -> Fault:
        line = self._source.count("\n", 0, start)
        return Fault(self._path, line + 1, start, end, text, kind, self._lines[line].strip())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)

    def _place(self, line: int, column: int) -> int:
        """Return a place in characters. The parser counts columns in bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _is_told(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in _TOLD
    return False


def _is_docstring(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.BinOp) -> bool:
    parts = (node.left, node.right)
    return any(isinstance(part, ast.JoinedStr | ast.Constant) and not _is_number(part) for part in parts)


def _is_number(part: ast.expr) -> bool:
    return isinstance(part, ast.Constant) and isinstance(part.value, int | float)
