"""What the tracer must know of an ATen overload besides its shape rule: results, aliasing,
mutation, and special cases.

All of it follows from the operator's schema and tags, looked at once per overload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.fused_optimizers import fused_step
from flambeau_prims.per_operator import per_operator
from flambeau_prims.rules.registry import aliasing, infer, is_view, rule_for
from flambeau_prims.sizes import eq, lt
from flambeau_prims.spec import Spec
from flambeau_prims.strides import is_dense, is_empty, same_shape
from flambeau_prims.unsupported import OutArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload

aten = torch.ops.aten

_SIZES = {
    aten.size.default, aten.stride.default, aten.sym_size.default, aten.sym_stride.default,
    aten.numel.default, aten.sym_numel.default, aten.storage_offset.default,
    aten.sym_storage_offset.default,
}  # fmt: skip
_CONTENTS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
}
_CHECKS = {aten._linalg_check_errors.default, aten._assert_async.default, aten._assert_async.msg}
_LAZY = {aten._conj.default: "conj", aten._neg_view.default: "neg"}
_UNCOUNTED = ("fused_", "amp_")
"""How the kernels' names begin that write to lists of tensors, and move no version counter."""
_COLLECTIVES = ("_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::")
_LIFTS = {aten.lift_fresh.default}

READS_MEMORY = frozenset(
    {
        aten.as_strided.default,
        aten.as_strided_copy.default,
        aten.as_strided_scatter.default,
        aten.view.dtype,
        aten.view_as_complex.default,
    }
)
"""Overloads whose result depends on the geometry of their first argument in memory."""


COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
"""Under which torch's C++ takes operators apart. Not `op.decompose`, nor `op._can_decompose`: these
mean what Python code of torch has registered, too, where dropout of probability 0 is a copy.
"""


def _is_composed(op: OpOverload) -> bool:
    """Whether each backend computes it by other operators; `silu_backward` has kernels."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return has(op.name(), COMPOSED.name) and not any(
            has(op.name(), backend) for backend in ("CPU", "CUDA")
        )
    except RuntimeError:  # overloads that exist for TorchScript alone
        return False


@per_operator
def is_check(op: Any) -> bool:
    """Whether an overload only checks data: it returns nothing, and stays in the graph."""
    return op in _CHECKS


@per_operator
def communicates(op: Any) -> bool:
    """Whether an overload is a collective, or waits for one: all processes of a group make the same
    calls in the same order.
    """
    schema = getattr(op, "_schema", None)
    return schema is not None and schema.name.startswith(_COLLECTIVES)


class OperatorFacts:
    """Facts of one overload; see the attributes."""

    __slots__ = (
        "aliases", "any_geometry", "changes_metadata", "checks_overlap", "composed",
        "copies_any_geometry", "counted_lists", "functional", "lazy", "mutated", "op", "out",
        "positions", "random", "returns_list", "special", "stem", "view", "view_form",
    )  # fmt: skip

    def __init__(self, op: OpOverload) -> None:
        schema = op._schema
        shared = aliasing(op)
        self.op = op
        self.stem = schema.name.split("::")[-1].strip("_")
        """What results are called in the graph."""
        self.aliases = shared.returns
        self.view = shared.view
        self.mutated = shared.mutated
        self.out = bool(schema.arguments) and schema.arguments[-1].is_out
        self.positions = {
            argument.name: index
            for index, argument in enumerate(schema.arguments)
            if not argument.kwarg_only
        }
        listed = [a.name for a in schema.arguments if str(a.type) == "List[Tensor]"]
        self.counted_lists = tuple(
            name
            for name in self.mutated
            if name in listed and op.namespace == "aten" and not self.stem.startswith(_UNCOUNTED)
        )
        """Written lists of tensors whose version counters the kernel moves, not the dispatcher."""
        self.returns_list = len(schema.returns) == 1 and str(schema.returns[0].type).startswith(
            "List"
        )
        self.changes_metadata = torch.Tag.inplace_view in op.tags
        """Whether it changes its argument's geometry; `view_form`: the view that gives it."""
        form = _out_of_place(op) if self.changes_metadata else None
        self.view_form = form if form is not None and is_view(form) else None
        self.lazy = _LAZY.get(op)
        """The bit, if any, that its result has where its argument has none: "conj" or "neg", which
        say that elements are yet to be conjugated or negated.
        """
        self.any_geometry = self.stem == "as_strided"
        """Whether it gives any geometry over its argument's memory."""
        self.copies_any_geometry = self.stem == "as_strided_copy"
        """Whether it copies such a window: a window beyond the memory is eager's error."""
        self.random = torch.Tag.nondeterministic_seeded in op.tags
        self.composed = op not in _SIZES and _is_composed(op)
        """Whether it consists of others. It reaches a Tracer whole where nothing above took it
        apart: in inference mode, and below autograd, as the handlers of wrapper subclasses call it.

        Taken apart it is computed as elsewhere, and its result is known to be an argument where it
        is one: dropout of probability 0, `type_as` of the same type, `einsum` of one tensor.
        """
        self.special: str | None = None
        # A rule knows better than the tag: only some calls of aten.index depend on contents.
        dynamic = torch.Tag.dynamic_output_shape in op.tags and rule_for(op) is None
        if op in _SIZES:
            self.special = "sizes"
        elif self.composed:
            pass  # its parts may be special
        elif op in _CONTENTS or torch.Tag.data_dependent_output in op.tags or dynamic:
            self.special = "contents"
        elif op in _LIFTS:
            self.special = "lift"
        elif op is aten._to_copy.default:
            self.special = "number"
        elif op is aten._efficientzerotensor.default:
            self.special = "zero"
        elif op is aten._transformer_encoder_layer_fwd.default:
            self.special = "layer"
        elif fused_step(op) is not None:
            self.special = "step"
        self.functional = _functional_form(op) if self.mutated else None
        form = _out_of_place(op) if self.mutated else None
        self.checks_overlap = op is aten.copy_.default or (
            form is not None and torch.Tag.pointwise in form.tags
        )
        """Whether it is an elementwise in-place loop, which refuses overlapping operands."""

    def argument(self, name: str, args: Any, kwargs: Any) -> Any:
        """The argument called `name` in a call, or None."""
        position = self.positions.get(name)
        if position is not None and position < len(args):
            return args[position]
        return None if kwargs is None else kwargs.get(name)

    def source(self, index: int, args: Any, kwargs: Any) -> Any:
        """The argument that result `index` shares memory with, or None; one for a whole list."""
        if self.returns_list:
            index = 0
        name = self.aliases[index]
        return None if name is None else self.argument(name, args, kwargs)

    def written(
        self, args: Any, kwargs: Any, names: Sequence[str] | None = None
    ) -> list[torch.Tensor]:
        """The tensors that a call writes to; those of the parameters `names`, if given."""
        result: list[torch.Tensor] = []
        for name in self.mutated if names is None else names:
            argument = self.argument(name, args, kwargs)
            if isinstance(argument, torch.Tensor):
                result.append(argument)
            elif isinstance(argument, (list, tuple)):
                result.extend(item for item in argument if isinstance(item, torch.Tensor))
        return result

    def check_mutation(self, rule_args: tuple[Any, ...], rule_kwargs: dict[str, Any]) -> None:
        """Raise, as eager does, if the result does not fit the argument that is written to."""
        if rule_for(self.op) is not None:
            infer(self.op, rule_args, rule_kwargs)
            return
        if self.functional is None:
            return
        result = infer(self.functional, rule_args, rule_kwargs)
        target = rule_args[0]
        if (
            isinstance(result, Spec)
            and isinstance(target, Spec)
            and not same_shape(result.shape, target.shape)
        ):
            if torch.Tag.pointwise not in self.functional.tags:
                # Some raise with their own texts, some resize.
                raise OutArgument(f"{self.op} writes {result!r} to {target!r}", self.op)
            raise RuntimeError(
                f"output with shape {list(target.shape)} doesn't match the broadcast shape "
                f"{list(result.shape)}"
            )

    def out_results(self, rule_args: tuple[Any, ...], rule_kwargs: dict[str, Any]) -> Any:
        """The Specs of what an out= operator writes; None where no functional form says so."""
        if self.functional is None:
            return None
        rest = {name: arg for name, arg in rule_kwargs.items() if name not in self.mutated}
        return infer(self.functional, rule_args, rest)


def check_overlap(target: Spec, source: Spec) -> None:
    """Raise, as eager's elementwise loops do, if an operand shares some of the memory that is
    written but is not just that.

    Both Specs are of tensors over one storage; tensors with gaps are not looked at, as eager does
    not.
    """
    if is_empty(target.shape) or is_empty(source.shape):
        return
    if not (is_dense(target) and is_dense(source)):
        return
    first, other = target.offset * target.dtype.itemsize, source.offset * source.dtype.itemsize
    last = first + target.numel * target.dtype.itemsize
    other_last = other + source.numel * source.dtype.itemsize
    if eq(first, other) and eq(last, other_last):
        overlaps = not same_shape(target.stride, source.stride)
    else:
        overlaps = lt(first, other_last) and lt(other, last)
    if overlaps:
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the written-to "
            "tensor refer to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


@per_operator
def facts(op: OpOverload) -> OperatorFacts:
    """The facts of an overload."""
    return OperatorFacts(op)


def _functional_form(op: OpOverload) -> OpOverload | None:
    """The functional form of an out= operator, or of an in-place one whose rule checks shapes."""
    namespace, name = op._schema.name.split("::")
    if op._schema.arguments[-1].is_out:
        inputs = [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]
        packet = getattr(getattr(torch.ops, namespace), name)
        for overload in packet.overloads():
            form = getattr(packet, overload)
            if [(a.name, str(a.type)) for a in form._schema.arguments] == inputs:
                return form
        return None
    form = _out_of_place(op)
    return form if form is not None and rule_for(form) is not None else None


def _out_of_place(op: OpOverload) -> OpOverload | None:
    """`add.Tensor` for `add_.Tensor`: the functional overload with the same arguments."""
    namespace, name = op._schema.name.split("::")
    if not name.endswith("_") or name.startswith("__"):
        return None
    packet = getattr(getattr(torch.ops, namespace), name[:-1], None)
    if packet is None:
        return None
    arguments = [(a.name, str(a.type)) for a in op._schema.arguments]
    for overload in packet.overloads():
        form = getattr(packet, overload)
        if [(a.name, str(a.type)) for a in form._schema.arguments] == arguments:
            return form
    return None
