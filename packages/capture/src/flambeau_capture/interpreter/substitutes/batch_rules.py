"""A Function's own `vmap`: captured for each arrangement of batch dimensions that calls have.

    torch.vmap(F.apply, in_dims=1)(x)
    ->  vmap {of: F {forward: ..., vmap of ((4, 3),) over (1,): ...}}(x)

Which dimensions of which arguments are mapped is torch's to say, when the transform runs on fake
tensors. A call without a rule ends the run with RuleNeeded; then the rule is captured, and the
transform runs again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from flambeau_capture.graphs.custom_function import BatchRule, RuleNeeded
from flambeau_capture.graphs.graph_module import build_subgraph
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.fake import make_fake
from flambeau_prims.sizes import Expr
from flambeau_prims.sizes_node import from_symint
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_capture.graphs.custom_function import CustomFunction
    from flambeau_capture.graphs.graph_module import Lifted
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.record import GraphValue

_TRANSFORMS = {
    "TransformType.Vmap": "torch.vmap",
    "TransformType.Grad": "torch.func.grad",
    "TransformType.Jvp": "torch.func.jvp",
}


@dataclass(frozen=True, slots=True)
class _Called:
    node: CustomFunction
    mapped: Callable[..., Any]
    """`mapped(info, in_dims, tensors)` interprets the program's `vmap`."""
    forward: Any
    """What the forward returned."""
    lifted: list[Lifted]


class FunctionsCalled:
    """The calls of Functions with their own `vmap`, by node."""

    def __init__(self) -> None:
        self._by_node: dict[int, _Called] = {}

    def add(
        self, node: CustomFunction, mapped: Callable[..., Any], forward: Any, lifted: list[Lifted]
    ) -> None:
        """Note a call."""
        self._by_node[id(node)] = _Called(node, mapped, forward, lifted)

    def __getitem__(self, node: CustomFunction) -> _Called:
        return self._by_node[id(node)]


def run_transform(machine: Machine, node: Any, arguments: tuple[Any, ...]) -> Any:
    """Run and record the call of a function transform, with the rules that it asks for."""
    while True:
        try:
            return machine.tape.call_function(node, arguments)
        except RuleNeeded as needed:
            _capture_rule(machine, needed)


def _capture_rule(machine: Machine, needed: RuleNeeded) -> None:
    """Interpret the program's `vmap` on tensors like those that it is needed for."""
    tape, name = machine.tape, needed.call.name
    called = machine.state_of(FunctionsCalled)[needed.call]
    before = machine.objects.side_effects_so_far()
    mark = tape.values_made()
    transforms, machine.transforms = (
        machine.transforms,
        machine.transforms + [_TRANSFORMS[found] for found in needed.transforms],
    )
    try:
        fakes = [
            make_fake(_spec_of(tensor), requires_grad=tensor.requires_grad)
            for tensor in needed.tensors
        ]
        parameters = [tape.declare(fake, f"arg_{at}") for at, fake in enumerate(fakes)]
        with tape.recording() as calls:
            result = called.mapped(needed.info, needed.in_dims, fakes)
        outputs, out_dims = _outputs(result, called)
        graph, lifted = build_subgraph(parameters, calls, [tape.value_of(out) for out in outputs])
    finally:
        machine.transforms = transforms
        tape.mark_inside(mark, f"{name}.vmap")
    if machine.objects.side_effects_so_far() != before:
        raise _break(name, "changes objects that exist outside it")
    rule = BatchRule(
        tuple(needed.in_dims),
        needed.info.randomness,
        tuple(
            tuple(size if type(size) is int else None for size in fake.spec.shape) for fake in fakes
        ),
        graph,
        tuple(_read_at(name, item, called.lifted, parameters) for item in lifted),
        tuple(out_dims),
    )
    assert needed.call.rules is not None
    needed.call.rules.append(rule)


def _break(name: str, detail: str) -> GraphBreak:
    return GraphBreak("autograd-function", f"the vmap of {name} {detail}")


def _spec_of(tensor: torch.Tensor) -> Spec:
    """The Spec of a tensor that outer transforms may have wrapped."""
    shape = [from_symint(size) for size in tensor.shape]
    strides = [from_symint(stride) for stride in tensor.stride()]
    return Spec.of(shape, stride=strides, dtype=tensor.dtype, device=tensor.device)


def _outputs(result: Any, called: _Called) -> tuple[list[torch.Tensor], list[int | None]]:
    """The tensors that a `vmap` returns, as many as the forward's, and their batch dimensions."""
    name = called.node.name
    if not isinstance(result, tuple) or len(result) != 2:
        raise RuntimeError(  # torch's text
            "Expected the vmap staticmethod to have two returns, an output and out_dims with "
            "pytree structure compatible with the output. "
            + (
                f"Got {len(result)} returns instead"
                if isinstance(result, tuple)
                else f"Got a {type(result)} instead"
            )
        )
    leaves, spec = pytree.tree_flatten(result[0])
    forward, forward_spec = pytree.tree_flatten(called.forward)
    if spec != forward_spec or any(
        type(leaf) is not type(value) for leaf, value in zip(leaves, forward, strict=True)
    ):
        raise _break(name, "returns another structure than its forward")
    dims = pytree._broadcast_to_and_flatten(result[1], spec)
    if dims is None:
        raise _break(name, "returns out_dims that do not fit its output")
    pairs = [
        (leaf, dim)
        for leaf, dim in zip(leaves, dims, strict=True)
        if isinstance(leaf, torch.Tensor)
    ]
    return [leaf for leaf, _ in pairs], [dim for _, dim in pairs]


def _read_at(
    name: str, item: Lifted, known: Sequence[Lifted], parameters: Sequence[GraphValue]
) -> int | tuple[int, int]:
    """Where a rule finds what it reads besides its arguments."""
    if item in known:
        return list(known).index(item)
    if isinstance(item, Expr):
        for at, parameter in enumerate(parameters):
            for dim, size in enumerate(parameter.spec.shape):  # type: ignore[union-attr]
                if size == item:
                    return at, dim
    raise _break(name, "reads a tensor, or computes a size, that its forward does not")
