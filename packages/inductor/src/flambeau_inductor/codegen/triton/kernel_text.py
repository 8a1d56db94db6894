"""The text of a program's Triton kernel as a module that needs nothing else of the program.

    SCALE = tl.constexpr(2)
    @triton.jit
    def twice(x): return SCALE * x
    @triton.jit
    def kernel(x, out, n, BLOCK: tl.constexpr): ... twice(tl.load(x + at)) ...
    ->  import triton.language as tl; SCALE = ...; def twice ...; def kernel ...

So a kernel is built, and kept in the cache, like those that this package generates. Names that a
text cannot stand for (an object of another library, two functions of one name) give None.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIBRARY = "triton"
_SCALARS = (bool, int, float, str)


def kernel_text(kernel: Any, functions: Sequence[Any] = ()) -> str | None:
    """The module's text, in which the kernel has the name `kernel.fn.__name__`, and so have the
    functions that it is given as constants.
    """
    try:
        writer = _Writer()
        for function in (kernel, *functions):
            writer.function(function)
    except _NoText:
        return None
    return "\n".join(["import triton", "import triton.language", *writer.lines, ""])


def constant_text(value: Any) -> str | None:
    """A constant argument of a kernel in Triton source; None for functions and other objects."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    if value is None or type(value) in _SCALARS:
        return repr(value)
    if type(value) is tuple:
        items = [constant_text(item) for item in value]
        return None if None in items else f"({', '.join(map(str, items))},)"
    if _module_of(type(value)) == "triton.language.core":
        if type(value).__name__ == "dtype":
            return _dtype_text(value)
        if type(value).__name__ == "constexpr":
            inner = constant_text(value.value)
            return None if inner is None else f"triton.language.constexpr({inner})"
    return None


class _NoText(Exception):
    """A name has no text."""


def _module_of(value: Any) -> str:
    return getattr(value, "__module__", None) or ""


def _dtype_text(dtype: Any) -> str | None:
    import triton.language as tl

    if type(dtype) is not tl.dtype:
        return None
    names = [name for name, value in vars(tl).items() if value is dtype]
    return f"triton.language.{names[0]}" if names else None


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = dict.fromkeys((_LIBRARY, *vars(builtins)), _RESERVED)
        """What each name of the module stands for."""

    def define(self, name: str, value: Any) -> bool:
        """Whether a name is new; it may stand for one value only."""
        known = self.names.get(name, _NOTHING)
        if known is _NOTHING:
            self.names[name] = value
            return True
        if known is not value and not (type(value) in _SCALARS and known == value):
            raise _NoText(name)
        return False

    def function(self, kernel: Any) -> None:
        """A kernel or device function, behind what it names."""
        if type(kernel).__name__ != "JITFunction" or getattr(kernel, "is_gluon", bool)():
            raise _NoText(kernel)
        name = kernel.fn.__name__
        if not self.define(name, kernel):
            return
        text = textwrap.dedent(kernel.src)
        tree = ast.parse(text).body[0]
        assert isinstance(tree, ast.FunctionDef), text
        scope = kernel.fn.__globals__ | inspect.getclosurevars(kernel.fn).nonlocals
        for used in _names_in(tree):
            if used in scope and used != name:
                self.value(used, scope[used])
        noinline = "(noinline=True)" if kernel.noinline else ""
        self.lines += ["", "", f"@triton.jit{noinline}", text.rstrip()]

    def value(self, name: str, value: Any) -> None:
        """What a name of the function's module stands for."""
        module = _module_of(value)
        if isinstance(value, types.ModuleType):
            if value.__name__ == _LIBRARY and name == _LIBRARY:
                return
            if value.__name__.partition(".")[0] != _LIBRARY:
                raise _NoText(name)
            if self.define(name, value):
                self.lines.append(f"import {value.__name__} as {name}")
        elif type(value).__name__ == "JITFunction" and not module.startswith(f"{_LIBRARY}."):
            self.function(value)
            if value.fn.__name__ != name and self.define(name, value):
                self.lines.append(f"{name} = {value.fn.__name__}")
        elif type(value) in _SCALARS:
            if self.define(name, value):
                self.lines.append(f"{name} = triton.language.constexpr({constant_text(value)})")
        elif (text := constant_text(value)) is not None:
            if self.define(name, value):
                self.lines.append(f"{name} = {text}")
        elif module.startswith(_LIBRARY):
            attribute = getattr(value, "__name__", "")
            if getattr(inspect.getmodule(value) or value, attribute, None) is not value:
                raise _NoText(name)
            if self.define(name, value):
                self.lines.append(f"from {module} import {attribute} as {name}")
        else:
            raise _NoText(name)


_NOTHING, _RESERVED = object(), object()


def _names_in(tree: ast.FunctionDef) -> list[str]:
    """The names that a function reads and does not set."""
    names = {node.id: None for node in ast.walk(tree) if isinstance(node, ast.Name)}
    own = {argument.arg for argument in ast.walk(tree) if isinstance(argument, ast.arg)}
    own |= {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    return [name for name in names if name not in own]
