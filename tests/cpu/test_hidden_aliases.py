"""No operator returns (a view of) an argument, or writes to one, that does not say so: memory is
reused and outputs are copied by what is said.

Every ATen call that the operators of torch's own table make, forward and backward, is run on real
tensors; where results share the memory of arguments, `aliasing` must know.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flambeau_autograd.functional_forms import UNDECLARED, NoFunctionalForm, functional_form
from flambeau_prims.rules.registry import aliasing
from tools.sweep.ops.draw import draw

SAMPLES = 1
"""Samples of each operator and dtype; all of them find no more, in twenty times the time."""


def memory(tensor: Any) -> int:
    """Where a tensor's storage is, or 0 if it has none."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return 0
    return tensor.untyped_storage().data_ptr()


def bits(tensor: torch.Tensor) -> torch.Tensor | None:
    """The bytes of a tensor's elements, to be compared later."""
    if tensor.layout is not torch.strided or tensor.numel() > 5000:
        return None
    return tensor.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).clone()


class Watch(TorchDispatchMode):
    """Notes results that share memory with arguments, and arguments that change, where the operator
    does not say so.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[str, set[int]] = defaultdict(set)
        self.written: set[Any] = set()
        self.calls = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        facts = aliasing(op)
        before = [] if facts.mutated else [bits(tensor) for tensor in given]
        result = op(*args, **(kwargs or {}))
        self.calls += 1
        places = {memory(tensor) for tensor in given} - {0}
        for number, out in enumerate(tree_leaves(result)):
            source = (
                facts.returns[number if len(facts.returns) > number else 0]
                if facts.returns
                else None
            )
            if memory(out) in places and source is None:
                self.shared[str(op)].add(number)
        for tensor, old in zip(given, before, strict=False):
            if old is not None and not torch.equal(old, bits(tensor)):  # type: ignore[arg-type]
                self.written.add(op)
        return result


def test_operators_say_what_they_share_and_write() -> None:
    watch = Watch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in op_db[::5]:
            for dtype in (torch.float32, torch.complex64):
                if dtype in info.supported_dtypes("cpu"):
                    run(info, dtype, watch)
    assert watch.calls > 500
    assert not watch.shared
    assert watch.written <= set(UNDECLARED)


def run(info: Any, dtype: torch.dtype, watch: Watch) -> None:
    """The first samples of an operator, forward and backward, without those that fail."""
    trains = dtype.is_floating_point or dtype.is_complex
    for number, sample in enumerate(draw(info.sample_inputs, "cpu", dtype, requires_grad=trains)):
        if number == SAMPLES:
            return
        try:
            with watch:
                result = info(sample.input, *sample.args, **sample.kwargs)
                outs = [
                    x
                    for x in tree_leaves(result)
                    if isinstance(x, torch.Tensor) and x.requires_grad
                ]
                if outs:
                    torch.autograd.backward([x.abs().sum() for x in outs])
        except (RuntimeError, NotImplementedError, AssertionError):
            continue


def test_functional_forms_make_memory_of_their_own() -> None:
    """What stands for an operator that writes is no view, and no composite operator, which may
    return its argument as it is.
    """
    composite = {
        "aten.linalg_eigvals.default", "aten.linear.default", "aten.silu_backward.default",
        "aten.upsample_bilinear2d.vec", "aten.upsample_nearest2d.vec",
    }  # fmt: skip
    seen = 0
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            op = getattr(packet, overload)
            if not aliasing(op).mutated or torch.Tag.inplace_view in op.tags or is_composite(op):
                continue
            try:
                form = functional_form(op).op
            except NoFunctionalForm:
                continue
            seen += 1
            assert not any(aliasing(form).returns) or name.lstrip("_").startswith("unsafe_"), op
            # (An out= operator's form may be any; what it returns is copied into the argument.)
            assert not name.endswith("_") or not is_composite(form) or str(form) in composite, (
                op,
                form,
            )
    assert seen > 800


def is_composite(op: Any) -> bool:
    """Whether an operator is made of others in every dispatch."""
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(
            op.name(), "CompositeImplicitAutograd"
        )
    except RuntimeError:  # overloads that exist for TorchScript only
        return False
