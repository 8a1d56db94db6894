"""Runs a program eagerly and captured, and compares: results, exceptions, what became of the arguments, and later calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

import flambeau_capture
from flambeau_capture import CaptureOptions


def run_graph(module: Any, example_inputs: list[Any]) -> Any:
    """The backend of these tests: the captured graph itself."""
    return module.forward  # not the module: global hooks are the program's


def compiled(
    fn: Callable[..., Any], *, fullgraph: bool = True, dynamic: bool | None = False
) -> Callable[..., Any]:
    return flambeau_capture.compile(
        fn,
        backend=run_graph,
        options=CaptureOptions(fullgraph=fullgraph, dynamic=dynamic, recompile_limit=32),
    )


def clone(value: Any) -> Any:
    return copy.deepcopy(value)


def same(got: Any, want: Any, path: str = "result") -> None:
    """Equal in type at every level; tensors to within rounding."""
    assert type(got) is type(want), f"{path}: {type(got)} instead of {type(want)}"
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, msg=lambda text: f"{path}: {text}")
        assert got.requires_grad == want.requires_grad, path
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), f"{path}: {len(got)} items instead of {len(want)}"
        for at, (a, b) in enumerate(zip(got, want, strict=True)):
            same(a, b, f"{path}[{at}]")
    elif isinstance(want, dict):
        assert list(dict.keys(got)) == list(dict.keys(want)), (
            f"{path}: {list(got)} instead of {list(want)}"
        )
        for key in dict.keys(want):
            same(dict.__getitem__(got, key), dict.__getitem__(want, key), f"{path}[{key!r}]")
    elif callable(want) or isinstance(want, (type, BaseException)):
        return
    elif hasattr(want, "__dict__") and type(want).__module__ != "builtins":
        same(vars(got), vars(want), path)
    elif hasattr(type(want), "__slots__") and type(want).__module__ != "builtins":
        for name in type(want).__slots__:
            assert hasattr(got, name) == hasattr(want, name), f"{path}.{name}"
            same(getattr(got, name, None), getattr(want, name, None), f"{path}.{name}")
    else:
        assert got == want, f"{path}: {got!r} instead of {want!r}"


def check(fn: Callable[..., Any], *args: Any, dynamic: bool | None = False, **kwargs: Any) -> Any:
    """Captured whole, twice, on equal arguments; returns the compiled callable."""
    torch.manual_seed(0)
    eager_args = clone((args, kwargs))
    want = fn(*eager_args[0], **eager_args[1])
    callable_ = compiled(fn, dynamic=dynamic)
    for _ in range(2):
        own = clone((args, kwargs))
        torch.manual_seed(0)
        same(callable_(*own[0], **own[1]), want)
        same(own, eager_args, "arguments")
    events = flambeau_capture.state_of(callable_).events
    assert [event.kind for event in events] == ["capture"], [event.text for event in events]
    return callable_


def breaks(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Not captured, run eagerly and right; returns the Break."""
    want = fn(*clone(args), **clone(kwargs))
    callable_ = compiled(fn, fullgraph=False)
    same(callable_(*clone(args), **clone(kwargs)), want)
    found = [entry.info.skipped for entry in callable_.entries]
    assert len(found) == 1 and found[0] is not None, "the frame was captured"
    return found[0]
