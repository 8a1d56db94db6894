"""Tracebacks of compiled programs are eager's: the same frames, the same lines, none of ours."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import flambeau
from flambeau_capture.core import core_is_native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(
    not core_is_native(), reason="the C core takes our frames out of tracebacks"
)


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLAMBEAU_CHECK", raising=False)


@flambeau.compiler.disable
def opaque() -> None:
    """A graph break."""


def plain(x: torch.Tensor) -> torch.Tensor:
    return x + x @ torch.ones(7, 9)


def before_a_break(x: torch.Tensor) -> torch.Tensor:
    y = x @ torch.ones(7, 9)
    opaque()
    return y


def after_a_break(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    opaque()
    raise ValueError(f"{y.sum():.1f}")


def _inner(x: torch.Tensor) -> torch.Tensor:
    opaque()
    y = x * 2
    opaque()
    raise KeyError(str(y.shape))


def _middle(x: torch.Tensor) -> torch.Tensor:
    z = _inner(x + 1)
    return z * 2


def nested(x: torch.Tensor) -> torch.Tensor:
    return _middle(x) + 1


def handled(x: torch.Tensor) -> torch.Tensor:
    try:
        _middle(x)
    except KeyError:
        opaque()
        raise ValueError("while handling")  # noqa: B904 (its context is what is tested)
    return x


def named(x: torch.Tensor) -> torch.Tensor:
    try:
        _middle(x)
    except KeyError as error:
        opaque()
        raise ValueError("from another") from error
    return x


def raised_again(x: torch.Tensor) -> torch.Tensor:
    try:
        try:
            _middle(x)
        finally:
            opaque()
    except KeyError:
        opaque()
        raise
    return x


def from_a_callback(x: torch.Tensor) -> Any:
    opaque()
    return sorted([1, 2], key=lambda at: _middle(x))


def from_a_generator(x: torch.Tensor) -> Any:
    def rows() -> Iterator[torch.Tensor]:
        yield x
        opaque()
        raise KeyError("row")

    return [row + 1 for row in rows()]


def recursive(x: torch.Tensor, depth: int = 5) -> torch.Tensor:
    if depth == 0:
        opaque()
        raise KeyError("deepest")
    return recursive(x + 1, depth - 1) * 2


def in_the_data(x: torch.Tensor) -> torch.Tensor:
    return x[torch.tensor([5]) + x.long()[0, 0] * 0] + 1


def calls_compiled(x: torch.Tensor) -> torch.Tensor:
    opaque()
    y = flambeau.compile(nested)(x)
    return y + 1


def caught_and_shown(x: torch.Tensor) -> str:
    try:
        _middle(x)
    except KeyError:
        opaque()
        return traceback.format_exc()
    return ""


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        opaque()
        return y @ x


def _hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
    opaque()
    raise ValueError(f"hook of {output.dim()}")


def _hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    module[1].register_forward_hook(_hook)
    return module


FUNCTIONS: list[Callable[..., Any]] = [
    plain,
    before_a_break,
    after_a_break,
    nested,
    handled,
    named,
    raised_again,
    from_a_callback,
    from_a_generator,
    recursive,
    in_the_data,
    calls_compiled,
]


def _places(error: BaseException) -> list[Any]:
    """The frames of an exception and of its chain, less torch's own, of which some are not run when
    a module is called compiled.
    """
    shown: list[Any] = []
    link: BaseException | None = error
    while link is not None:
        shown.append((type(link), str(link)))
        for frame in traceback.extract_tb(link.__traceback__):
            place = frame.filename, frame.name, frame.lineno, frame.colno, frame.end_colno
            if "/torch/" not in frame.filename:
                shown.append(place)
        link = link.__cause__ or link.__context__
    return shown


def _raised(function: Callable[..., Any], *args: Any) -> list[Any]:
    with pytest.raises(Exception) as raised:
        function(*args)
    for item in traceback.walk_tb(raised.value.__traceback__):
        assert isinstance(item[0].f_locals, Mapping)  # debuggers read them
    found = _places(raised.value)
    return [item for item in found if len(item) == 2 or item[1] != "_raised"]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_of_functions(function: Callable[..., Any]) -> None:
    x = torch.ones(2, 3)
    wanted = _raised(function, x)
    compiled = flambeau.compile(function)
    for _ in range(3):
        assert _raised(compiled, x) == wanted


@pytest.mark.parametrize("make", [Layer, _hooked], ids=["module", "hook"])
def test_of_modules(make: Callable[[], nn.Module]) -> None:
    x = torch.ones(2, 3)
    module = make()
    wanted = _raised(module, x)
    compiled = flambeau.compile(module)
    for _ in range(3):
        assert _raised(compiled, x) == wanted


def test_a_handler_sees_the_frames_too() -> None:
    x = torch.ones(2, 3)
    compiled = flambeau.compile(caught_and_shown)
    for _ in range(3):
        assert compiled(x) == caught_and_shown(x)


def test_threads() -> None:
    x = torch.ones(2, 3)
    wanted = _raised(nested, x)
    compiled = flambeau.compile(nested)
    found: list[Any] = []

    def work() -> None:
        found.extend(_raised(compiled, x) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 80


class _ClosedStream:
    """A standard output that nothing can be written to."""

    def write(self, text: str) -> int:
        raise ValueError("closed")


def prints(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print("shown")
    return y


@pytest.mark.parametrize("checked", [False, True])
def test_only_checked_runs_keep_our_frames(monkeypatch: pytest.MonkeyPatch, checked: bool) -> None:
    if checked:
        monkeypatch.setenv("FLAMBEAU_CHECK", "1")
    compiled = flambeau.compile(prints)
    compiled(torch.ones(2, 3))
    monkeypatch.setattr(sys, "stdout", _ClosedStream())
    files = [str(item[0]) for item in _raised(compiled, torch.ones(2, 3)) if len(item) > 2]
    assert any(file.startswith("<flambeau entry of") for file in files) is checked


def test_references_are_kept() -> None:
    compiled = flambeau.compile(nested)
    x = torch.ones(2, 3)
    for _ in range(3):
        _raised(compiled, x)
    gc.collect()
    before = sys.getrefcount(x)
    for _ in range(10):
        _raised(compiled, x)
    gc.collect()
    assert sys.getrefcount(x) == before
