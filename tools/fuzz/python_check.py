"""One random Python program, compiled and eager: results, exceptions, mutation, aliasing, over
several calls.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import linecache
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import flambeau
from flambeau_capture import CaptureError
from tools.fuzz.python_programs import programs


def first_difference(
    count: int, first: int, *, backend: str = "eager", dynamic: bool | None = None
) -> tuple[int, str | None]:
    """How many programs ran, and the first that differs (its text, shrunk, and how), drawn from
    seed `first`.
    """
    ran = 0

    @seed(first)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(programs())
    def compare(text: str) -> None:
        nonlocal ran
        ran += 1
        found = difference(text, backend=backend, dynamic=dynamic)
        if found is not None:
            raise _Differs(f"{text[text.index('def program(') :]}\n{found}")

    try:
        compare()
    except _Differs as differs:
        return ran, str(differs)
    return ran, None


class _Differs(AssertionError):
    """A compiled program did something else than eager."""


def difference(
    text: str, *, backend: str = "eager", dynamic: bool | None = None, fullgraph: bool = False
) -> str | None:
    """What differs, or None; also where, with `fullgraph`, the program cannot be one graph."""
    eager, compiled_module = _load(text), _load(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = flambeau.compile(
            compiled_module.program, backend=backend, dynamic=dynamic, fullgraph=fullgraph
        )
        for n, flag, size, sign in _CALLS:
            want = _outcome(eager.program, eager, n, flag, size, sign)
            try:
                got = _outcome(compiled, compiled_module, n, flag, size, sign)
            except CaptureError:
                return None
            if got != want:
                return (
                    f"called with n={n}, flag={flag}, size {size}, sign {sign}:\n"
                    f"  eager    {want}\n"
                    f"  compiled {got}"
                )
    return None


_CALLS = ((2, True, 3, 1), (2, True, 3, 1), (2, True, 3, -1), (3, False, 3, 1), (2, True, 4, 1))
"""n, flag, size, and the sign of the data: a branch on them goes the other way."""


def _load(text: str) -> types.ModuleType:
    """A module of the program; all have one name, since programs print their classes."""
    sys.modules["program"] = module = types.ModuleType("program")  # where dataclasses look for it
    filename = f"<program {hash(text) & 0xFFFFFFFF:08x}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), module.__dict__)
    return module


def _outcome(
    function: Callable[..., Any], module: Any, n: int, flag: bool, size: int, sign: int
) -> str:
    """Everything that can be seen of a call, as text."""
    torch.default_generator.manual_seed(0)
    x = torch.arange(1.0, size + 1) * sign
    w = torch.full((size,), 0.5, requires_grad=True)
    net = module.Net()
    arguments = (
        x,
        torch.ones(size) / 2,
        n,
        flag,
        [n, x, "s"],
        {"a": 1, "b": [n]},
        module.Child(5),
        x[1:],
        torch.arange(2.0 * size)[::2],
        w,
        torch.arange(size),
        torch.arange(size) % 2 == 0,
        net,
    )
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            result = function(*arguments)
    except CaptureError:
        raise
    except Exception as error:
        result = tuple(_told(error))
    described = _Description()
    seen = (result, arguments, module.COUNTER, module.REGISTRY, module.Thing.scale)
    parts = [described.of(value) for value in seen]
    shown = _ADDRESS.sub("0x", printed.getvalue())
    parts += [repr(shown), f"grad={torch.is_grad_enabled()}"]
    torch.set_grad_enabled(True)
    module.Thing.scale = 2
    module.REGISTRY["order"] = []
    return "; ".join((*parts, _gradients(described.differentiable, w, net.weight)))


_ADDRESS = re.compile(r"0x[0-9a-f]+")


def _told(error: BaseException) -> Iterator[Any]:
    """An exception and those behind it."""
    yield type(error).__name__
    yield _message(error)
    yield error.__suppress_context__
    for behind in (error.__cause__, error.__context__):
        yield None if behind is None else tuple(_told(behind))


def _gradients(results: list[torch.Tensor], *leaves: torch.Tensor) -> str:
    """The gradients of everything that came out, or that they cannot be had."""
    try:
        torch.autograd.backward([result.double().sum() for result in results])
    except RuntimeError:  # the program has written over what the backward needs
        return "no gradients"
    return ", ".join(_Description().of(leaf.grad) for leaf in leaves)


def _message(error: BaseException) -> str:
    """The text of an exception; torch's own texts may name an operator in more than one way."""
    return "" if isinstance(error, (RuntimeError, IndexError)) else str(error)


class _Description:
    """Values as text, with a number for each object that can be shared, so that aliasing shows."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        self._kept: list[Any] = []
        self.differentiable: list[torch.Tensor] = []

    def of(self, value: Any) -> str:
        """The text of a value."""
        if value is None or isinstance(value, (bool, int, str, float)):
            return f"{round(value, 4)!r}" if isinstance(value, float) else repr(value)
        if isinstance(
            value, tuple
        ):  # which equal tuples are one object is the interpreter's affair
            return f"{type(value).__name__}({', '.join(map(self.of, value))})"
        if isinstance(value, torch.device):  # a new object at each access of `tensor.device`
            return repr(value)
        known = id(value) in self._numbers
        number = self._numbers.setdefault(id(value), len(self._numbers))
        self._kept.append(value)
        if known:
            return f"#{number}"
        return f"#{number}={self._text(value)}"

    def _text(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        name = type(value).__name__
        if isinstance(value, (list, collections.deque)):
            return f"{name}[{', '.join(map(self.of, list(value)))}]"
        if isinstance(value, dict):
            items = [f"{self.of(key)}: {self.of(item)}" for key, item in value.items()]
            return f"{name}{{{', '.join(items)}}}"
        if isinstance(value, (set, frozenset)):
            return f"{name}{{{', '.join(sorted(map(repr, value)))}}}"
        if isinstance(value, (torch.dtype, range)):
            return repr(value)
        if isinstance(value, types.FunctionType):
            cells = [self.of(cell) for cell in value.__closure__ or ()]
            return (
                f"{value.__qualname__}{self.of(value.__defaults__)}{self.of(value.__kwdefaults__)}"
                f"{cells}"
            )
        if isinstance(value, types.CellType):
            try:
                return f"cell({self.of(value.cell_contents)})"
            except ValueError:
                return "cell()"
        if isinstance(value, functools.partial):
            return (
                f"partial({self.of(value.func)}, {self.of(value.args)}, {self.of(value.keywords)})"
            )
        if isinstance(value, types.GeneratorType):
            return f"{value.__qualname__}{self.of(self._rest(value))}"
        if hasattr(value, "__dict__"):
            return f"{name}{self.of(dict(vars(value)))}"
        return name

    def _rest(self, generator: types.GeneratorType[Any, Any, Any]) -> Any:
        """What a generator has still to give."""
        try:
            return list(generator)
        except Exception as error:
            return tuple(_told(error))

    def _tensor(self, value: torch.Tensor) -> str:
        memory = value.untyped_storage().data_ptr()
        place = self._memory.setdefault(memory, len(self._memory)) if value.numel() else -1
        numbers = [round(item, 3) + 0.0 for item in value.detach().double().flatten().tolist()]
        layout = f"{list(value.shape)}{list(value.stride())}+{value.storage_offset()}@{place}"
        text = f"{str(value.dtype).removeprefix('torch.')}{layout}{numbers}"
        if value.requires_grad:
            text += f"grad{self.of(value.grad) if value.is_leaf else ''}"
            self.differentiable.append(value)
        if vars(value):
            text += self.of(dict(vars(value)))
        return text
