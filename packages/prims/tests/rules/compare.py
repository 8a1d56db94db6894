"""Comparing a rule's Specs with what eager PyTorch returns."""

from __future__ import annotations

from typing import Any

import torch

from flambeau_prims import eager_checks
from flambeau_prims.rules.registry import infer_uncached
from flambeau_prims.spec import Spec, spec_of


def to_specs(arg: Any) -> Any:
    """An argument as a rule sees it: tensors as Specs, lists as tuples."""
    if isinstance(arg, torch.Tensor):
        return spec_of(arg)
    if isinstance(arg, (list, tuple)):
        return tuple(to_specs(item) for item in arg)
    return arg


def describe(result: Any) -> Any:
    """A result as nested plain data; strides of dimensions of size 1 and of empty tensors, too."""
    if isinstance(result, torch.Tensor):
        result = spec_of(result)
    if isinstance(result, Spec):
        shape, stride = list(result.shape), list(result.stride)
        return shape, stride, result.offset, result.dtype, result.device.type
    if isinstance(result, (list, tuple)):
        return [describe(item) for item in result]
    return result


def check(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> str | None:
    """None if the rule agrees with eager on this call (or both raise), else what differs.

    As in a trace, `eager_checks` asks torch which dtypes its kernels take: this varies by release.
    """
    kwargs = kwargs or {}
    specs, spec_kwargs = to_specs(args), {name: to_specs(arg) for name, arg in kwargs.items()}
    call = f"{op}({', '.join(map(repr, specs))}, {spec_kwargs})"
    try:
        inferred = describe(infer_uncached(op, specs, spec_kwargs))
        eager_checks.check(op, specs, spec_kwargs)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        inferred = error
    try:
        eager = describe(op(*args, **kwargs))
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        if "ZeroDivisionError" in str(error):
            return None
        eager = error
    if isinstance(inferred, Exception) and isinstance(eager, Exception):
        return None
    if isinstance(inferred, Exception) or isinstance(eager, Exception) or inferred != eager:
        return f"{call}\n  rule:  {inferred!r}\n  eager: {eager!r}"
    return None
