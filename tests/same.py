"""The comparison of a compiled result with eager's that the test suites of all packages share."""

from __future__ import annotations

import collections
import functools
import operator
import types
from typing import Any

import numpy as np
import torch


def same(
    got: Any,
    want: Any,
    path: str = "result",
    *,
    tolerance: float | None = None,
    strides: bool = True,
) -> None:
    """Equal in type at every level; tensors also in strides, history and gradients.

    `tolerance` is relative and absolute; 0 demands equal bits, None takes `assert_close`'s.
    Gradients need not have eager's strides: `strides=False` where the results contain some.
    """
    _Comparison(tolerance, strides).same(got, want, path)


class _Comparison:
    def __init__(self, tolerance: float | None, strides: bool) -> None:
        self.tolerance = tolerance
        self.strides = strides
        self.met: dict[tuple[int, int], Any] = {}  # what was compared: cycles end

    def same(self, got: Any, want: Any, path: str) -> None:
        assert type(got) is type(want), f"{path}: {type(got)}, not {type(want)}"
        if isinstance(want, torch.Tensor):
            with torch._C.DisableTorchFunctionSubclass():
                self.tensors(got, want, path)
        elif isinstance(want, np.ndarray):
            assert (got.dtype, got.strides) == (want.dtype, want.strides), path
            rounding = 1e-12 if self.tolerance is None else self.tolerance
            np.testing.assert_allclose(got, want, rounding, 0, err_msg=path)
        elif isinstance(want, type):
            assert got is want or got.__qualname__ == want.__qualname__, f"{path}: {got!r}"
        elif (id(got), id(want)) not in self.met:
            self.met[id(got), id(want)] = got, want
            self.parts(got, want, path)

    def tensors(self, got: torch.Tensor, want: torch.Tensor, path: str) -> None:
        if self.strides and want.layout == torch.strided and want.numel() > 1:
            assert got.stride() == want.stride(), f"{path}: strides {got.stride()}"
        assert got.requires_grad == want.requires_grad, f"{path}: requires_grad"
        assert got.is_inference() == want.is_inference(), f"{path}: is_inference"
        torch.testing.assert_close(
            got.detach(),
            want.detach(),
            rtol=self.tolerance,
            atol=self.tolerance,
            equal_nan=True,
            msg=lambda text: f"{path}: {text}",
        )
        if want.is_leaf and want.requires_grad:
            same(got.grad, want.grad, f"{path}.grad", tolerance=self.tolerance, strides=False)

    def parts(self, got: Any, want: Any, path: str) -> None:
        """Containers, modules, functions and objects, part by part; anything else by `==`."""
        if isinstance(want, torch.nn.Module):
            # Hooks have numbers, and parametrised modules classes, that no two modules share.
            self.same(dict(got.named_buffers()), dict(want.named_buffers()), f"{path} (buffers)")
            self.same(list(got.parameters()), list(want.parameters()), f"{path} (parameters)")
            own, other = (
                {name: value for name, value in vars(module).items() if not name.startswith("_")}
                for module in (got, want)
            )
            self.same(own, other, path)
        elif isinstance(want, (list, tuple, collections.deque)):
            assert len(got) == len(want), f"{path}: {len(got)} items, not {len(want)}"
            if isinstance(want, collections.deque):
                assert got.maxlen == want.maxlen, path
            for index, (a, b) in enumerate(zip(got, want, strict=True)):
                self.same(a, b, f"{path}[{index}]")
        elif isinstance(want, dict):
            ordered = isinstance(want, collections.OrderedDict)
            keys = collections.OrderedDict.keys if ordered else dict.keys
            self.same(list(keys(got)), list(keys(want)), f"{path}.keys()")
            for a, b in zip(keys(got), keys(want), strict=True):
                self.same(dict.__getitem__(got, a), dict.__getitem__(want, b), f"{path}[{b!r}]")
        elif isinstance(want, BaseException):
            self.same(got.args, want.args, f"{path}.args")
        elif isinstance(want, types.FunctionType):
            assert got.__code__ is want.__code__, f"{path}: {got!r}, not {want!r}"
            self.same(got.__defaults__, want.__defaults__, f"{path}.__defaults__")
        elif isinstance(want, types.MethodType):
            self.same((got.__func__, got.__self__), (want.__func__, want.__self__), path)
        elif isinstance(want, functools.partial):
            self.same(
                (got.func, got.args, got.keywords), (want.func, want.args, want.keywords), path
            )
        elif isinstance(want, (operator.itemgetter, operator.attrgetter, operator.methodcaller)):
            self.same(got.__reduce__(), want.__reduce__(), path)
        elif hasattr(want, "__dict__") and type(want).__module__ != "builtins":
            self.same(vars(got), vars(want), path)
        elif hasattr(type(want), "__slots__") and type(want).__module__ != "builtins":
            for name in type(want).__slots__:
                assert hasattr(got, name) == hasattr(want, name), f"{path}.{name}"
                self.same(getattr(got, name, None), getattr(want, name, None), f"{path}.{name}")
        else:
            assert got == want or (got != got and want != want), f"{path}: {got!r}, not {want!r}"
