"""A stand-in for Triton, which need not be installed: kernels are Python functions on real tensors.

A pointer is a tensor, flattened; `load(x, at)` and `store(x, at, value)` take one element. Classes
have Triton's names and are of Triton's modules, which is what capture looks at.
"""

from __future__ import annotations

import inspect
import itertools
import types
from typing import Any

language = types.ModuleType("triton.language")
exec(
    """
position = (0, 0, 0)
def program_id(axis): return position[axis]
def load(x, at): return x.reshape(-1)[at].item()
def store(x, at, value): x.view(-1)[at] = value
class constexpr: pass
""",
    language.__dict__,
)


def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    for hook in self.pre_run_hooks:
        hook(*args, **kwargs)
    given = {name: value for name, value in kwargs.items() if name in self.signature.parameters}
    bound = self.signature.bind(*args, **given)
    bound.apply_defaults()
    sizes = grid(bound.arguments) if callable(grid) else grid
    for place in itertools.product(*map(range, (*sizes, 1, 1)[:3])):
        language.position = place
        self.fn(*bound.args)
    self.launches += 1


def run_with_heuristics(self: Any, *args: Any, **kwargs: Any) -> None:
    for name, value in self.values.items():
        kwargs[name] = value({**dict(zip(self.fn.arg_names, args, strict=False)), **kwargs})
    self.fn.run(*args, **kwargs)


def run_tuned(self: Any, *args: Any, **kwargs: Any) -> None:
    config = self.configs[-1]
    if config.pre_hook is not None:
        named = dict(zip(self.fn.arg_names, args, strict=False))
        config.pre_hook({**named, **kwargs, **config.kwargs})
    self.fn.run(*args, **kwargs, **config.all_kwargs())


def __getitem__(self: Any, grid: Any) -> Any:
    return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)


for _function in (run, run_with_heuristics, run_tuned, __getitem__):
    _function.__module__ = "triton.runtime.jit"
run_with_heuristics.__name__ = run_tuned.__name__ = "run"


class JITFunction:
    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.signature = inspect.signature(fn)
        self.arg_names = list(self.signature.parameters)
        self.pre_run_hooks: list[Any] = []
        self.launches = 0

    run = run
    __getitem__ = __getitem__


class Heuristics:
    def __init__(self, fn: Any, values: dict[str, Any]) -> None:
        self.fn, self.values, self.arg_names = fn, values, fn.arg_names

    run = run_with_heuristics
    __getitem__ = __getitem__


class Config:
    def __init__(self, kwargs: dict[str, Any], pre_hook: Any = None) -> None:
        self.kwargs, self.pre_hook = kwargs, pre_hook

    def all_kwargs(self) -> dict[str, Any]:
        return {**self.kwargs, "num_warps": 4}


class Autotuner:
    def __init__(self, fn: Any, configs: list[Config]) -> None:
        self.fn, self.configs, self.arg_names = fn, configs, fn.arg_names
        self.reset_to_zero: list[str] = []
        self.restore_value: list[str] = []

    run = run_tuned
    __getitem__ = __getitem__
