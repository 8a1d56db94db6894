"""`torch.autograd.Function` as a node that holds the graphs of its methods.

    y = MyFunction.apply(x, 2.0)
    ->  (y,) = CustomFunction MyFunction {forward: ..., backward: ...}(x, *lifted)

The node makes a Function of eager torch, whose methods run the graphs. Function transforms and
forward-mode differentiation therefore treat it as they treat the program's: they call its `jvp` for
tangents, and its `vmap` for batches.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch._C import _functorch

from flambeau_capture.graphs.higher_order import HigherOrder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import fx

    from flambeau_capture.graphs.higher_order import Runnable

Defined: TypeAlias = tuple[bool, ...]
"""Which gradients, or which tangents, are defined."""


@dataclass(frozen=True, eq=False)
class Kept:
    """A tensor of the forward that the derivatives read: argument, output or further result `index`
    of the forward graph.

    `checked`: it goes through save_for_backward, which notices a later write; else it hangs on ctx.
    """

    source: Literal["argument", "output", "extra"]
    index: int
    checked: bool


@dataclass(frozen=True, eq=False)
class Derivative:
    """The backward for one pattern of defined gradients, or the jvp for one of defined tangents.

    `graph` takes the defined ones, the kept tensors that `kept` lists, then `lifted` (positions
    among the call's lifted arguments). `results[i]` is the result of `graph` that is the gradient
    of argument i, or the tangent of output i; or None.
    """

    graph: fx.GraphModule
    kept: tuple[int, ...]
    lifted: tuple[int, ...]
    results: tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class BatchRule:
    """The Function's own `vmap` for one arrangement of batch dimensions.

    `graph` takes the tensors with their batch dimensions, then `lifted`: each the position of a
    lifted argument of the call, or a size (argument, dimension). It returns the outputs, whose
    batch dimensions are `out_dims`. In `shapes` symbolic sizes are None.
    """

    in_dims: tuple[int | None, ...]
    randomness: str
    shapes: tuple[tuple[int | None, ...], ...]
    graph: fx.GraphModule
    lifted: tuple[int | tuple[int, int], ...]
    out_dims: tuple[int | None, ...]

    def fits(
        self, in_dims: tuple[int | None, ...], randomness: str, tensors: Sequence[torch.Tensor]
    ) -> bool:
        """Whether it is the rule for these tensors."""
        return (self.in_dims, self.randomness) == (in_dims, randomness) and all(
            len(shape) == tensor.ndim
            and all(
                known is None or (type(size) is int and known == size)
                for known, size in zip(shape, tensor.shape, strict=True)
            )
            for shape, tensor in zip(self.shapes, tensors, strict=True)
        )

    def run(
        self, tensors: Sequence[torch.Tensor], lifted: Sequence[Any]
    ) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
        """The outputs and their batch dimensions."""
        read = [
            lifted[at] if isinstance(at, int) else tensors[at[0]].shape[at[1]] for at in self.lifted
        ]
        return tuple(self.graph.forward(*tensors, *read)), self.out_dims


class RuleNeeded(Exception):
    """A Function with its own `vmap` is mapped as no captured rule says; `transforms` are around
    its call.
    """

    def __init__(
        self,
        call: CustomFunction,
        info: Any,
        in_dims: tuple[int | None, ...],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        super().__init__(f"the vmap of {call.name} was not captured for in_dims={in_dims}")
        self.call, self.info, self.in_dims, self.tensors = call, info, in_dims, tensors
        stack = _functorch.get_interpreter_stack() or ()
        self.transforms = [str(interpreter.key()) for interpreter in stack]


@dataclass(frozen=True, eq=False, repr=False)
class CustomFunction(HigherOrder):
    """`MyFunction.apply(...)`: call it with the tensor arguments, then the lifted ones; it returns
    a tuple of the tensor results.

    `forward` takes the `arguments` tensors and the first `forward_lifted` lifted ones, and returns
    `outputs` results, then what the derivatives need besides. `backwards` and `jvps` are keyed by
    which gradients of outputs, and tangents of arguments, are defined. `backwards` is None for a
    Function without a backward, `rules` for one without its own `vmap`; capture appends to these.
    """

    name: str
    forward: fx.GraphModule
    arguments: int
    forward_lifted: int
    outputs: int
    backwards: Mapping[Defined, Derivative] | None
    jvps: Mapping[Defined, Derivative]
    rules: list[BatchRule] | None
    kept: tuple[Kept, ...] = ()
    dirty: tuple[int, ...] = ()
    non_differentiable: tuple[int, ...] = ()
    materialize_grads: bool = True
    once_differentiable: bool = False
    generate_vmap_rule: bool = False

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        tensors = args[: self.arguments]
        # None: torch's generated rules for jvp expect as many tangents as in_dims.
        lifted = args[self.arguments :] or None
        if torch._C._are_functorch_transforms_active():
            return self._transformable.apply(self, *tensors, lifted)  # type: ignore[no-untyped-call, no-any-return]
        # The C entry: Function.apply itself looks for function transforms first.
        apply = super(torch.autograd.Function, self._plain).apply  # type: ignore[misc]
        return apply(self, *tensors, lifted)  # type: ignore[no-any-return]

    def graphs(self) -> Mapping[str, Runnable]:
        found: dict[str, Runnable] = {"forward": self.forward}
        for name, derivatives, of in (
            ("backward", self.backwards or {}, "gradient"),
            ("jvp", self.jvps, "tangent"),
        ):
            for defined, derivative in derivatives.items():
                missing = [str(at) for at, is_there in enumerate(defined) if not is_there]
                suffix = f" without {of} of {', '.join(missing)}" if missing else ""
                found[f"{name}{suffix}"] = derivative.graph
        for rule in self.rules or ():
            found[f"vmap of {rule.shapes} over {rule.in_dims}"] = rule.graph
        return found

    @functools.cached_property
    def _plain(self) -> type[torch.autograd.Function]:
        return self._function(_Plain)

    @functools.cached_property
    def _transformable(self) -> type[torch.autograd.Function]:
        return self._function(_Transformable)

    def _function(self, base: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
        """`base` under the name that the program gave its Function, with the methods it has."""
        members: dict[str, Any] = {"generate_vmap_rule": self.generate_vmap_rule}
        if self.backwards is not None:
            once = torch.autograd.function.once_differentiable
            members["backward"] = staticmethod(
                once(_pull_back) if self.once_differentiable else _pull_back
            )
        if self.jvps:
            members["jvp"] = staticmethod(_push_forward)
        if self.rules is not None:
            members["vmap"] = staticmethod(_map)
        return type(self.name, (base,), members)

    def _set_up(self, ctx: Any, lifted: Any, tensors: Any, outputs: Any, extras: Any) -> None:
        sources = {"argument": tensors, "output": outputs, "extra": extras}
        kept = [sources[item.source][item.index] for item in self.kept]
        ctx.call, ctx.lifted = self, lifted or ()
        ctx.held = [
            None if item.checked else value for item, value in zip(self.kept, kept, strict=True)
        ]
        saved = [value for item, value in zip(self.kept, kept, strict=True) if item.checked]
        ctx.save_for_backward(*saved)
        if self.jvps:
            ctx.save_for_forward(*saved)
        if self.dirty:
            ctx.mark_dirty(*[tensors[at] for at in self.dirty])
        if self.non_differentiable:
            ctx.mark_non_differentiable(*[outputs[at] for at in self.non_differentiable])
        ctx.set_materialize_grads(self.materialize_grads)

    def _derived(
        self, method: str, ctx: Any, given: tuple[Any, ...]
    ) -> tuple[torch.Tensor | None, ...]:
        """What the graph of a method makes of gradients or tangents."""
        defined = tuple(item is not None for item in given)
        derivatives = (self.backwards or {}) if method == "backward" else self.jvps
        derivative = derivatives.get(defined)
        if derivative is None:
            raise RuntimeError(
                f"the {method} of {self.name} could not be captured for derivatives defined "
                f"as {defined}"
            )
        saved = iter(ctx.saved_tensors)
        kept = [
            next(saved) if item.checked else held
            for item, held in zip(self.kept, ctx.held, strict=True)
        ]
        results = derivative.graph.forward(
            *[item for item in given if item is not None],
            *[kept[at] for at in derivative.kept],
            *[ctx.lifted[at] for at in derivative.lifted],
        )
        return tuple(None if at is None else results[at] for at in derivative.results)


def _pull_back(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
    return None, *ctx.call._derived("backward", ctx, gradients), None


def _push_forward(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
    return ctx.call._derived("jvp", ctx, tangents[1:-1])  # type: ignore[no-any-return]


def _map(
    info: Any, in_dims: tuple[Any, ...], call: CustomFunction, *args: Any
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    *tensors, lifted = args
    dims = tuple(in_dims[1:-1])
    for rule in call.rules or ():
        if rule.fits(dims, info.randomness, tensors):
            return rule.run(tensors, lifted or ())
    raise RuleNeeded(call, info, dims, tensors)


class _Plain(torch.autograd.Function):
    """Outside transforms: the forward sees ctx, and may keep tensors that it does not return."""

    @staticmethod
    def forward(ctx: Any, call: CustomFunction, *args: Any) -> tuple[Any, ...]:
        *tensors, lifted = args
        results = call.forward.forward(*tensors, *(lifted or ())[: call.forward_lifted])
        outputs = results[: call.outputs]
        call._set_up(ctx, lifted, tensors, outputs, results[call.outputs :])
        return outputs  # type: ignore[no-any-return]


class _Transformable(torch.autograd.Function):
    """Inside function transforms, which ask for a separate setup_context."""

    @staticmethod
    def forward(call: CustomFunction, *args: Any) -> tuple[Any, ...]:
        *tensors, lifted = args
        return call.forward.forward(*tensors, *(lifted or ())[: call.forward_lifted])  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        call, *tensors, lifted = inputs
        call._set_up(ctx, lifted, tensors, output, ())
