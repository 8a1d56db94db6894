"""What `print_readable` of a captured graph shows: shapes and dtypes, and the program's lines.

    # File: model.py:12 in forward, code: y = torch.relu(x @ self.weight)
    matmul: "f32[s0, 8]" = torch.matmul(x, weight)

torch.fx prints what it finds in a node's meta under its own names ("tensor_meta", "val",
"stack_trace"). These are made of "spec" and "where" for the time of the printing: no backend sees
them, and capture does not pay for them.
"""

from __future__ import annotations

import ast
import functools
import linecache
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.sizes import Expr
from flambeau_prims.sizes_node import to_symint
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = ("tensor_meta", "val", "stack_trace")


@contextmanager
def annotated(graph: torch.fx.Graph) -> Iterator[None]:
    """Give the nodes of a graph the meta that torch.fx prints."""
    before = [(node, {name: node.meta.get(name) for name in _NAMES}) for node in graph.nodes]
    try:
        for node, _ in before:
            node.meta.update(_meta(node))
        yield
    finally:
        for node, meta in before:
            for name, value in meta.items():
                node.meta[name] = value
                if value is None:
                    del node.meta[name]


def _meta(node: torch.fx.Node) -> Iterator[tuple[str, Any]]:
    from torch.fx.passes.shape_prop import TensorMetadata

    spec = node.meta.get("spec")
    if isinstance(spec, Spec):
        yield (
            "tensor_meta",
            TensorMetadata(
                torch.Size(spec.shape) if spec.env is None else spec.shape,  # type: ignore[arg-type]
                spec.dtype,
                bool(node.meta.get("requires_grad")),
                spec.stride,  # type: ignore[arg-type]
                None,
                False,
                {},
            ),
        )
    elif isinstance(spec, Expr):
        yield "val", to_symint(spec)
    file, _, line = str(node.meta.get("where", "")).rpartition(":")
    if file and line.isdigit():
        code = linecache.getline(file, int(line)).strip() or "?"
        yield (
            "stack_trace",
            f'File "{file}", line {line}, in {_function_at(file, int(line))}\n    {code}',
        )


def _function_at(file: str, line: int) -> str:
    """The name of the innermost function or class of a file that holds a line."""
    holders = [
        item for item in _functions("".join(linecache.getlines(file))) if item[0] <= line <= item[1]
    ]
    return max(holders)[2] if holders else "<module>"


@functools.lru_cache(maxsize=16)
def _functions(source: str) -> tuple[tuple[int, int, str], ...]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ()
    return tuple(
        (node.lineno, node.end_lineno or node.lineno, getattr(node, "name", "<lambda>"))
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda))
    )
