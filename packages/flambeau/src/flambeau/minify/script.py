"""The script of a captured graph as data: what it imports, its inputs, its statements, its outputs.

def forward(self, x, y):              params   x, y, each with the text that makes its value
    add = x + y;  x = y = None        statements  add = x + y
    sin = torch.sin(add);  add = None             sin = torch.sin(add)
    return (sin,)                     outputs  sin

Reads what `runnable_graph` writes, and its own output.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAIN_CLASS = "CapturedGraph"


class NotReadable(Exception):
    """The file is no script of a captured graph."""


@dataclass(frozen=True)
class Statement:
    """`target = text`; no target for a call that is made for what it does."""

    target: str
    text: str

    @property
    def reads(self) -> set[str]:
        """The names that it reads."""
        return names_in(self.text)

    def __str__(self) -> str:
        return f"{self.target} = {self.text}" if self.target else self.text


@dataclass(frozen=True)
class Script:
    """A graph's script. `params` are (name, text of its value); `head` are imports, functions and
    the classes of inner graphs; `init` is what the graph's class holds.
    """

    head: str
    init: str
    params: tuple[tuple[str, str], ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        names = "".join(f", {name}" for name, _ in self.params)
        body = [str(statement) for statement in self.statements]
        body.append(f"return ({''.join(f'{name}, ' for name in self.outputs)})")
        lines = "\n".join(f"        {line}" for line in body)
        values = "\n".join(f"        {text}," for _, text in self.params)
        return (
            f"{self.head.rstrip()}\n\n\n"
            f"class {MAIN_CLASS}(torch.nn.Module):\n{self.init.rstrip()}\n\n"
            f"    def forward(self{names}):\n{lines}\n\n\n"
            f"def example_inputs():\n    return [\n{values}\n    ]\n"
        )

    def pruned(self) -> Script:
        """Without statements that nothing reads, and without inputs that nothing reads."""
        wanted = set(self.outputs)
        kept = []
        for statement in reversed(self.statements):
            if not statement.target or statement.target in wanted:
                wanted |= statement.reads
                kept.append(statement)
        params = tuple(param for param in self.params if param[0] in wanted)
        return replace(self, statements=tuple(kept[::-1]), params=params)


def names_in(text: str) -> set[str]:
    """The names that an expression reads."""
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def read_script(text: str) -> Script:
    """The script of a text; NotReadable says what is missing."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise NotReadable(f"it is no Python: {error}") from error
    head: list[str] = []
    graph: ast.ClassDef | None = None
    made: ast.FunctionDef | None = None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == MAIN_CLASS:
            graph = node
        elif isinstance(node, ast.FunctionDef) and node.name == "example_inputs":
            made = node
        elif isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef, ast.Assign)) or (
            isinstance(node, ast.FunctionDef) and node.name == "tensor"
        ):
            head.append(ast.unparse(node))
        elif isinstance(node, ast.Raise):
            raise NotReadable(ast.unparse(node).removeprefix("raise SystemExit"))
    if graph is None or made is None:
        raise NotReadable(f"it has no class {MAIN_CLASS} or no example_inputs")
    methods = {node.name: node for node in graph.body if isinstance(node, ast.FunctionDef)}
    forward = methods["forward"]
    values = made.body[-1]
    if not isinstance(values, ast.Return) or not isinstance(values.value, ast.List):
        raise NotReadable("example_inputs returns no list")
    names = [argument.arg for argument in forward.args.args[1:]]
    texts = [ast.unparse(value) for value in values.value.elts]
    statements, outputs = _body(forward)
    init = "\n".join(f"    {line}" for line in ast.unparse(methods["__init__"]).splitlines())
    return Script("\n".join(head), init, tuple(zip(names, texts, strict=True)), statements, outputs)


def _body(forward: ast.FunctionDef) -> tuple[tuple[Statement, ...], tuple[str, ...]]:
    statements: list[Statement] = []
    outputs: list[str] = []
    for node in forward.body:
        if isinstance(node, ast.Return):
            outputs += dict.fromkeys(_outputs(node.value))
        elif isinstance(node, ast.Assign):
            if isinstance(node.value, ast.Constant) and node.value.value is None:
                continue  # a value is dropped
            (target,) = node.targets
            statements.append(Statement(ast.unparse(target), ast.unparse(node.value)))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            statements.append(Statement(ast.unparse(node.target), ast.unparse(node.value)))
        elif isinstance(node, ast.Expr):
            statements.append(Statement("", ast.unparse(node.value)))
        else:
            raise NotReadable(f"it has the statement {ast.unparse(node)}")
    return tuple(statements), tuple(outputs)


def _outputs(value: ast.expr | None) -> Iterable[str]:
    if isinstance(value, ast.Name):
        yield value.id
    elif isinstance(value, (ast.Tuple, ast.List)):
        for item in value.elts:
            yield from _outputs(item)
    elif isinstance(value, ast.Dict):
        for item in value.values:
            yield from _outputs(item)
