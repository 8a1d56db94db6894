"""One random Python program, compiled and eager: results, exceptions, mutation, aliasing, over several calls."""

from __future__ import annotations

import linecache
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import flambeau
from tools.fuzz.python_programs import programs


def first_difference(
    count: int, first: int, *, backend: str = "eager", dynamic: bool | None = None
) -> tuple[int, str | None]:
    """How many programs ran, and the first that differs (its text, shrunk, and how), drawn from seed `first`."""
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


def difference(text: str, *, backend: str = "eager", dynamic: bool | None = None) -> str | None:
    """What differs, or None."""
    eager, compiled_module = _load(text), _load(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = flambeau.compile(compiled_module.program, backend=backend, dynamic=dynamic)
        for n, flag, size in ((2, True, 3), (2, True, 3), (3, False, 3), (2, True, 4)):
            want = _outcome(eager.program, eager, n, flag, size)
            got = _outcome(compiled, compiled_module, n, flag, size)
            if got != want:
                return f"called with n={n}, flag={flag}, size {size}:\n  eager    {want}\n  compiled {got}"
    return None


def _load(text: str) -> types.ModuleType:
    module = types.ModuleType("program")
    filename = f"<program {hash(text) & 0xFFFFFFFF:08x}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), module.__dict__)
    return module


def _outcome(function: Callable[..., Any], module: Any, n: int, flag: bool, size: int) -> str:
    """Everything that can be seen of a call, as text."""
    torch.manual_seed(0)
    x = torch.arange(1.0, size + 1)
    thing = module.Child(5)
    arguments = (x, torch.ones(size) / 2, n, flag, [n, x, "s"], {"a": 1, "b": [n]}, thing)
    try:
        result = function(*arguments)
    except Exception as error:
        result = (
            type(error).__name__,
            _message(error),
            type(error.__cause__).__name__,
            type(error.__context__).__name__,
        )
    described = _Description()
    parts = [
        described.of(value) for value in (result, arguments, module.COUNTER, module.Thing.scale)
    ]
    state = f"grad={torch.is_grad_enabled()}"
    torch.set_grad_enabled(True)
    module.Thing.scale = 2
    return f"{'; '.join(parts)}; {state}"


def _message(error: BaseException) -> str:
    """The text of an exception; torch's own texts may name an operator in more than one way."""
    return "" if isinstance(error, (RuntimeError, IndexError)) else str(error)


class _Description:
    """Values as text, with a number for each object that can be shared, so that aliasing shows."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        self._kept: list[Any] = []

    def of(self, value: Any) -> str:
        """The text of a value."""
        if value is None or isinstance(value, (bool, int, str, float)):
            return f"{round(value, 4)!r}" if isinstance(value, float) else repr(value)
        if isinstance(
            value, tuple
        ):  # which equal tuples are one object is the interpreter's affair
            return f"{type(value).__name__}({', '.join(map(self.of, value))})"
        known = id(value) in self._numbers
        number = self._numbers.setdefault(id(value), len(self._numbers))
        self._kept.append(value)
        if known:
            return f"#{number}"
        return f"#{number}={self._text(value)}"

    def _text(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            memory = value.untyped_storage().data_ptr()
            place = self._memory.setdefault(memory, len(self._memory)) if value.numel() else -1
            numbers = [round(item, 3) + 0.0 for item in value.detach().double().flatten().tolist()]
            kind = str(value.dtype).removeprefix("torch.")
            return (
                f"{kind}{list(value.shape)}@{place}{numbers}{'grad' if value.requires_grad else ''}"
            )
        if isinstance(value, list):
            return f"{type(value).__name__}[{', '.join(map(self.of, value))}]"
        if isinstance(value, dict):
            return (
                "{"
                + ", ".join(f"{self.of(key)}: {self.of(item)}" for key, item in value.items())
                + "}"
            )
        if hasattr(value, "__dict__"):
            return f"{type(value).__name__}{self.of(dict(vars(value)))}"
        return type(value).__name__
