"""Graphs of wrapper subclasses as graphs of plain tensors.

    gm(x: TwoTensor): y = x * 2                 x * 2 is computed by TwoTensor.__torch_dispatch__
      ->  plain(a, b): x = enter(a, b); y = x * 2; return leave(y)
          traced:      mul = a * 2; mul_1 = b * 2; return mul, mul_1

Everything behind sees plain tensors only. `enter` and `leave` run while the graph is traced: they
make wrappers of fake leaves, and take the results apart. Both are differentiable, so the engine
that differentiates the trace gives a wrapper's gradient to the leaves. In a call the same happens
to real tensors, outside of the compiled graph: arguments are taken apart, results made.

A gradient may be of another class than its argument (a plain one for a quantised weight, a wrapper
for a plain weight). The trace finds it out, and starts again with as many *carriers* for this
argument as its gradient has leaves: inputs whose data nobody reads, and whose gradients these are.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from flambeau_autograd.backward_places import nodes_below
from flambeau_autograd.reasons import (
    LeafInside,
    SubclassGradient,
    SubclassGraph,
    TrainingOnlyMutation,
)
from flambeau_autograd.subclass_calls import (
    Argument,
    Border,
    Given,
    Made,
    Same,
    ViewOf,
    gradient_of_leaves,
    is_differentiable,
    run_plain,
    take_apart,
)
from flambeau_autograd.wrapper_tangents import Program
from flambeau_prims.sharding import masks_of, release_fake_masks
from flambeau_prims.unsupported import Unsupported
from flambeau_prims.wrapper_subclasses import (
    SubclassSpec,
    alias_of_fake,
    is_built_as,
    is_wrapper_subclass,
    leaves_of,
    rebuilt,
    spec_of_any,
    spec_of_wrapper,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_autograd.graph_call import Compiled
    from flambeau_autograd.subclass_calls import Planned
    from flambeau_prims.fake import FakeTensor
    from flambeau_prims.wrapper_subclasses import AnySpec

    CompilePlain = Callable[[fx.GraphModule, Sequence[Any]], Compiled]

_ATTEMPTS = 8
"""How often a trace starts again because a gradient is of another class; each settles one."""


def holds_subclasses(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether a graph takes or makes wrapper subclasses."""
    return any(is_wrapper_subclass(type(x)) for x in example_inputs) or any(
        _mentions_wrapper(node.meta.get("spec")) for node in gm.graph.nodes
    )


def _mentions_wrapper(spec: Any) -> bool:
    if isinstance(spec, (tuple, list)):
        return any(map(_mentions_wrapper, spec))
    return isinstance(spec, SubclassSpec)


def compile_plain_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compile_plain: CompilePlain
) -> Compiled:
    """The callable of a graph with wrappers, by `compile_plain` of the graph of plain tensors."""
    border = Border.of(gm, example_inputs)
    for _ in range(_ATTEMPTS):
        flat, _ = take_apart(border, example_inputs)
        note = _NoteMasks()
        plain = _plain_graph(gm, border, note)
        try:
            compiled = compile_plain(plain, flat)
        except _OtherGradient as error:
            border.arguments[error.position].gradient = error.spec
            continue
        finally:
            release_fake_masks(note.buffers)
        aligned = border.aligned(plain.meta["aligned_inputs"])
        gm.meta.update({**plain.meta, **gm.meta, "aligned_inputs": aligned})
        reruns = gm.meta.setdefault("eager_derivatives", [])
        return run_plain(compiled, border, Program(gm, reruns))
    raise SubclassGradient("the classes of gradients depend on each other")


class _OtherGradient(Unsupported):
    """The gradient of an argument is not built as the trace has assumed."""

    reason = "subclass-gradient"

    def __init__(self, position: int, spec: AnySpec) -> None:
        super().__init__(f"the gradient of argument {position} is {spec!r}")
        self.position = position
        self.spec = spec


# ---------------------------------------------------------------- the plain graph


class _PlainGraph(fx.GraphModule):
    """A graph that is only traced: its `enter` and `leave` have no source text."""

    def recompile(self) -> Any:
        """No code is generated."""
        return None


def _plain_graph(gm: fx.GraphModule, border: Border, note: _NoteMasks) -> fx.GraphModule:
    """The graph of plain tensors, which starts with `enter`s and ends with `leave`."""
    graph, root = fx.Graph(), torch.nn.Module()
    made: dict[fx.Node, fx.Node] = {}
    entering: list[tuple[fx.Node, _Enter, list[fx.Node]]] = []
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node, argument in zip(placeholders, border.arguments, strict=True):
        if argument.spec is None or (argument.is_plain and not argument.requires_grad):
            made[node] = graph.node_copy(node)
            continue
        names = [node.name]
        if not argument.is_plain:
            names = [f"{node.name}_{at}" for at in range(len(argument.leaves))]
            names += [f"{node.name}_gradient_{at}" for at in range(len(argument.carriers))]
        given = []
        for name, spec in zip(names, [*argument.leaves, *argument.carriers], strict=True):
            given.append(graph.placeholder(name))
            given[-1].meta.update(spec=spec, source=node.meta.get("source", node.name))
            given[-1].meta["hooked"] = node.meta.get("hooked", False)
        entering.append((node, _Enter(argument), given))
    for node, enter, given in entering:
        made[node] = graph.call_function(enter, tuple(given))
    leave = _Leave(border, [enter for _, enter, _ in entering])
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(gm)
            if is_wrapper_subclass(type(value)):
                raise SubclassGraph(f"the graph holds a {type(value).__name__} as a constant")
            object.__setattr__(root, str(node.target), value)
        if node.op == "output":
            results = fx.node.map_arg(node.args[0], made.__getitem__)
            graph.output(graph.call_function(leave, (results,)))
        elif node.op != "placeholder":
            made[node] = graph.node_copy(node, made.__getitem__)
            spec = node.meta.get("spec")
            if isinstance(spec, SubclassSpec) and masks_of(spec.context.given):
                graph.call_function(note, (made[node],))
    plain = _PlainGraph(root, graph)
    plain.meta.update(gm.meta)
    plain.meta["takes_wrappers_apart"] = True
    return plain


class _NoteMasks:
    """Collects the buffers that calls leave masks in."""

    __name__ = "note_masks"

    def __init__(self) -> None:
        self.buffers: list[Any] = []

    def __call__(self, result: torch.Tensor) -> None:
        self.buffers += masks_of(result)


class _Enter:
    """Makes an argument of the plain graph's inputs: its leaves, then its carriers."""

    __name__ = "enter"

    def __init__(self, argument: Argument) -> None:
        self.argument = argument
        self.made: Any = None
        self.history: Any = None

    def __call__(self, *given: torch.Tensor) -> torch.Tensor:
        argument = self.argument
        if argument.requires_grad:
            with torch.enable_grad():
                made = _Entering.apply(argument, *given)
        else:
            made = rebuilt(argument.spec, iter(given))  # type: ignore[arg-type]
        self.made, self.history = made, made.grad_fn
        return made  # type: ignore[no-any-return]

    @property
    def is_recorded(self) -> bool:
        """Whether autograd has recorded a write to the argument."""
        return self.made is not None and self.made.grad_fn is not self.history


class _Entering(torch.autograd.Function):
    """`_Enter` in the eyes of autograd."""

    keeps_gradients = True

    @staticmethod
    def forward(ctx: Any, argument: Argument, *given: FakeTensor) -> torch.Tensor:
        ctx.argument, ctx.leaves = argument, given[: len(argument.leaves)]
        ctx.set_materialize_grads(False)
        leaves = [alias_of_fake(x) if x.requires_grad else x for x in ctx.leaves]
        if not isinstance(argument.spec, SubclassSpec):
            return alias_of_fake(leaves[0])
        made = rebuilt(argument.spec, iter(leaves))
        return made.detach() if made.requires_grad else made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        argument: Argument = ctx.argument
        assert argument.spec is not None
        if gradient is None:
            return (None,) * len(ctx.needs_input_grad)
        expected = argument.spec if argument.gradient is None else argument.gradient
        spec = spec_of_any(gradient)
        if not is_built_as(spec, expected):
            raise _OtherGradient(argument.position, spec)
        argument.found = spec
        leaves = list(leaves_of(gradient))
        parts = [leaf if is_differentiable(leaf) else None for leaf in leaves]
        if argument.gradient is not None:
            if None in parts:
                raise SubclassGradient(f"a gradient has integers among its leaves: {spec!r}")
            return (None, *(None for _ in ctx.leaves), *parts)
        for part, leaf, own in zip(parts, leaves, ctx.leaves, strict=True):
            if part is None and leaf is not own:
                raise SubclassGradient(f"a gradient has its own integers: {spec!r}")
        return (None, *parts)


class _Leave:
    """Takes the results apart, and notes how they are made again."""

    __name__ = "leave"

    def __init__(self, border: Border, entered: list[_Enter]) -> None:
        self.border = border
        self.entered = entered

    def __call__(self, results: Any) -> list[Any]:
        plan: list[Planned] = []
        flat: list[Any] = []
        given = {id(enter.made): enter.argument for enter in self.entered}
        numbers: dict[int, int] = {}
        for out in results:
            if not is_wrapper_subclass(type(out)):
                plan.append(Same(len(flat)))
                flat.append(out)
            elif id(out) in given:
                plan.append(Given(given[id(out)].position))
            elif out._is_view() and id(out._base) in given:
                if _is_one_of_several(out):
                    raise SubclassGraph("a result is one of several views that one call takes")
                plan.append(ViewOf(given[id(out._base)].position, out))
            elif id(out) in numbers:
                plan.append(plan[numbers[id(out)]])
            else:
                if masks_of(out):
                    raise SubclassGraph("a result waits for a reduction that needs a mask")
                numbers[id(out)] = len(plan)
                leaves = self._leaves(out)
                connected = self._connected(out)
                plan.append(Made(spec_of_wrapper(out), len(flat), _tangent_of(out), connected))
                flat += leaves
        if any(enter.is_recorded for enter in self.entered):
            raise TrainingOnlyMutation("the program writes to an input that requires grad")
        self.border.plan = plan
        self.border.versions = [
            (enter.argument.position, enter.made._version)
            for enter in self.entered
            if not enter.argument.is_plain and enter.made._version
        ]
        return flat

    def _connected(self, out: torch.Tensor) -> tuple[int, ...]:
        """The arguments that autograd goes back to from a result."""
        if out.grad_fn is None:
            return ()
        nodes = set(nodes_below([out]))
        return tuple(each.argument.position for each in self.entered if each.history in nodes)

    def _leaves(self, out: torch.Tensor) -> list[torch.Tensor]:
        leaves = list(leaves_of(out))
        if out.grad_fn is None:
            if out.requires_grad:
                raise LeafInside("an output is a leaf that requires grad and was made inside")
            return leaves
        if not any(map(is_differentiable, leaves)):
            raise SubclassGraph(f"a result that requires grad has integer leaves only: {out!r}")
        parts = iter(_Leaving.apply(_tangent_of(out), out))
        return [next(parts) if is_differentiable(leaf) else leaf for leaf in leaves]


def _is_one_of_several(view: torch.Tensor) -> bool:
    """Whether the gradient of a view's base needs those of other views, too (`unbind`): a view that
    is taken alone has none for them, and classes of wrappers may refuse that.
    """
    assert view._base is not None
    node, end = view.grad_fn, view._base.grad_fn
    while node is not None and node is not end:
        if len(node._input_metadata) > 1:
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def _tangent_of(out: torch.Tensor) -> SubclassSpec | None:
    """What arrives for a result in a backward, as its class says; None if autograd does not know
    the result.
    """
    if out.grad_fn is None:
        return None
    with torch.no_grad():
        tangent = out.detach()
        convert = getattr(tangent, "__coerce_tangent_metadata__", None)
        return spec_of_wrapper(tangent if convert is None else convert())


class _Leaving(torch.autograd.Function):
    """A wrapper to its leaves that have gradients."""

    keeps_gradients = True

    @staticmethod
    def forward(ctx: Any, spec: SubclassSpec, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.spec, ctx.leaves = spec, list(leaves_of(out))
        return tuple(alias_of_fake(x) for x in ctx.leaves if is_differentiable(x))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        return None, gradient_of_leaves(ctx.spec, ctx.leaves, gradients)
