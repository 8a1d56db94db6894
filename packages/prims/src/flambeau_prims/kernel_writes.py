"""Which arguments a Triton kernel writes to, from the text of its function.

    def add(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at) + tl.load(y + at))
    -> {"out"}

An expression may hold the addresses of the parameters that it is computed from, up to loads, whose
results are data. What a store or an atomic operation is given as its address is written. Functions
that the kernel calls are looked into. A function that is not known may write to all addresses that
it is given. The analysis ignores the order of statements, so a name holds what it holds anywhere.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

Names = frozenset[str]
_NONE: Names = frozenset()

_LANGUAGE = "triton.language"
_WRITERS = ("store", "atomic", "scatter")
_READERS = ("load", "gather")
_OPAQUE = ("inline_asm", "extern", "call", "async", "copy")
"""Parts of names of functions of Triton that write to an address, that give the data behind one, or
that may do either.
"""


@dataclass
class _Summary:
    """What one function does with the addresses in its parameters."""

    written: set[str] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)


def written_parameters(function: types.FunctionType) -> Names | None:
    """The parameters behind whose addresses a kernel may write; None if its text is unknown."""
    summary = _summarize(function, {})
    return None if summary is None else frozenset(summary.written)


def python_function(value: Any) -> types.FunctionType | None:
    """The Python function that a decorated kernel or device function is made of."""
    for _ in range(8):
        if isinstance(value, types.FunctionType):
            return value
        value = getattr(value, "fn", None)
    return None


def _summarize(
    function: types.FunctionType, seen: dict[types.FunctionType, _Summary]
) -> _Summary | None:
    known = seen.get(function)
    if known is not None:
        return known
    try:
        text = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(text).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(tree, ast.FunctionDef):
        return None
    names = [a.arg for a in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
    # A function that calls itself may do anything with its arguments.
    seen[function] = _Summary(set(names), set(names))
    walk = _Walk(function, names, seen)
    summary = walk.run(tree.body)
    seen[function] = summary
    return summary


class _Walk:
    def __init__(
        self,
        function: types.FunctionType,
        names: list[str],
        seen: dict[types.FunctionType, _Summary],
    ) -> None:
        self.scope = dict(function.__globals__)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                self.scope[name] = cell.cell_contents
            except ValueError:
                self.scope.pop(name, None)
        self.seen = seen
        self.held: dict[str, Names] = {name: frozenset({name}) for name in names}
        self.summary = _Summary()

    def run(self, body: list[ast.stmt]) -> _Summary:
        """Visit the body until no name holds more than before."""
        while True:
            before = dict(self.held)
            for statement in body:
                self.visit(statement)
            if self.held == before:
                return self.summary

    def visit(self, node: ast.AST) -> None:
        """A statement."""
        if isinstance(node, ast.Assign):
            value = self.value(node.value)
            for target in node.targets:
                self.bind(target, value)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            if node.value is not None:
                self.bind(node.target, self.value(node.value))
        elif isinstance(node, ast.For):
            self.bind(node.target, self.value(node.iter))
        elif isinstance(node, ast.Return):
            if node.value is not None:
                self.summary.returned |= self.value(node.value)
        elif isinstance(node, ast.withitem):
            held = self.value(node.context_expr)
            if node.optional_vars is not None:
                self.bind(node.optional_vars, held)
        elif isinstance(node, ast.expr):
            self.value(node)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.stmt, ast.withitem)) or (
                isinstance(child, ast.expr) and not isinstance(node, (ast.Assign, ast.Return))
            ):
                self.visit(child)

    def bind(self, target: ast.expr, value: Names) -> None:
        """Names in a target of an assignment hold these addresses, too."""
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.held[node.id] = self.held.get(node.id, _NONE) | value

    def value(self, node: ast.expr | ast.keyword | ast.comprehension | ast.AST) -> Names:
        """The parameters whose addresses an expression may hold."""
        if isinstance(node, ast.Name):
            return self.held.get(node.id, _NONE)
        if isinstance(node, ast.Call):
            return self.call(node)
        if isinstance(node, ast.NamedExpr):
            value = self.value(node.value)
            self.bind(node.target, value)
            return value
        if isinstance(node, ast.comprehension):
            self.bind(node.target, self.value(node.iter))
        if isinstance(node, ast.Compare):
            self.all(ast.iter_child_nodes(node))
            return _NONE
        return self.all(ast.iter_child_nodes(node))

    def all(self, nodes: Iterable[ast.AST]) -> Names:
        """The union over expressions."""
        held = _NONE
        for node in nodes:
            held |= self.value(node)
        return held

    # Calls

    def call(self, node: ast.Call) -> Names:
        """What a call returns; notes what it writes."""
        args = [self.value(arg) for arg in node.args]
        named = {keyword.arg: self.value(keyword.value) for keyword in node.keywords}
        given = _NONE.union(*args, *named.values())
        callee = self.resolve(node.func)
        if callee is None and isinstance(node.func, ast.Attribute):  # a method of a value
            held = self.value(node.func.value)
            return self.builtin(node.func.attr, [held, *args], named, held | given)
        module = getattr(callee, "__module__", None) or ""
        function = python_function(callee)
        if module.startswith(_LANGUAGE):
            name = getattr(callee, "__name__", None) or type(callee).__name__
            return self.builtin(name, args, named, given)
        if module == "builtins" and not isinstance(callee, type):
            return given
        if function is not None and not module.startswith("triton."):
            return self.device_function(function, node, args, named, given)
        if isinstance(callee, type) or module.startswith("triton."):
            return given  # tuples, constexpr, and functions of constants
        self.summary.written |= given
        return given

    def builtin(
        self, name: str, args: list[Names], named: dict[str | None, Names], given: Names
    ) -> Names:
        """A function of Triton's language, or a method of one of its values."""
        if any(part in name for part in _WRITERS):
            address = args[0] if args else named.get("pointer", named.get("desc", given))
            self.summary.written |= address
            return _NONE
        if any(part in name for part in _OPAQUE):
            self.summary.written |= given
            return given
        return _NONE if any(part in name for part in _READERS) else given

    def device_function(
        self,
        function: types.FunctionType,
        node: ast.Call,
        args: list[Names],
        named: dict[str | None, Names],
        given: Names,
    ) -> Names:
        """A call of another function of the program that runs on the device."""
        summary = _summarize(function, self.seen)
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        starred = any(isinstance(arg, ast.Starred) for arg in node.args) or None in named
        if summary is None or starred or len(args) > len(names):
            self.summary.written |= given
            return given
        result = _NONE
        for name, held in (*zip(names, args, strict=False), *named.items()):
            if name in summary.written:
                self.summary.written |= held
            if name in summary.returned:
                result |= held
        return result

    def resolve(self, node: ast.expr) -> Any:
        """The object that a name of the function's module stands for; None for other values."""
        if isinstance(node, ast.Name):
            if node.id in self.held:
                return None
            builtins = self.scope.get("__builtins__", {})
            builtins = vars(builtins) if isinstance(builtins, types.ModuleType) else builtins
            return self.scope.get(node.id, builtins.get(node.id, _UNKNOWN))
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            return None if owner is None else getattr(owner, node.attr, _UNKNOWN)
        return None


_UNKNOWN = object()
