"""Shapes of custom operators (torch.library): by the fake kernel that their author registered, run
on fake tensors.

@my_op.register_fake
# runs on FakeTensors here, with symbolic sizes and the real device
def _(x, k): return torch.empty_like(x)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._library.simple_registry import singleton

from flambeau_prims.fake import FakeTensor, StorageRecord, make_fake
from flambeau_prims.rules.registry import rule_for_others
from flambeau_prims.sizes import Expr, ExprEnv
from flambeau_prims.sizes_node import from_symbolic, to_symbolic
from flambeau_prims.spec import Spec
from flambeau_prims.tracer import Tracer
from flambeau_prims.unsupported import DataDependent

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

_DYNAMIC_SIZES = frozenset({"new_dynamic_size", "create_unbacked_symint"})
_OWN_RULES = frozenset({"aten", "prim", "prims"})


@rule_for_others
def fake_kernel(op: OpOverload) -> Callable[..., Any] | None:
    """A rule that runs the fake kernel of a custom operator, if it has one."""
    if op.namespace in _OWN_RULES:
        return None
    kernel = singleton.find(op._name).fake_impl.kernel
    if kernel is None:
        return None
    function = kernel.func

    def infer(*args: Any, **kwargs: Any) -> Any:
        result = _Arguments()
        fake_args = [result.take(arg) for arg in args]
        fake_kwargs = {name: result.take(arg) for name, arg in kwargs.items()}
        with torch.no_grad(), Tracer(result.env, record=False, device=result.device or "cpu"):
            try:
                return _specs(function(*fake_args, **fake_kwargs))
            except AttributeError as error:
                # torch.library.get_ctx() gives no context here, which is asked for sizes that are
                # in the data.
                if error.obj is None and error.name in _DYNAMIC_SIZES:
                    text = f"the sizes of the results of {op} depend on contents"
                    raise DataDependent(text, op) from None
                raise

    return infer


class _Arguments:
    """Turns a rule's arguments into a kernel's, and notes their ExprEnv and device."""

    def __init__(self) -> None:
        self.env: ExprEnv | None = None
        self.device: torch.device | None = None

    def take(self, arg: Any) -> Any:
        """Tensors for Specs, SymInts for Exprs."""
        if isinstance(arg, Spec):
            self.env = self.env or arg.env
            if self.device is None or self.device.type == "cpu":
                self.device = arg.device
            return make_fake(arg, StorageRecord())
        if isinstance(arg, Expr):
            self.env = self.env or arg.env
            return to_symbolic(arg)
        if isinstance(arg, (tuple, list)):
            return [self.take(item) for item in arg]
        return arg


def _specs(result: Any) -> Any:
    if isinstance(result, FakeTensor):
        return result.spec
    if isinstance(result, (tuple, list)):
        return tuple(_specs(item) for item in result)
    return from_symbolic(result) if isinstance(result, torch.SymInt) else result
