"""`torch.autograd`: custom Functions and `torch.autograd.grad`.

The forward and the backward of a Function are interpreted, each into a graph, and one node holds
both:

    y = MyFunction.apply(x, 2.0)
    ->  (y,) = CustomFunction MyFunction {forward: ..., backward: ...}(x, *lifted)

The forward is interpreted on the frame's own tensors, so its side effects are the frame's. The
backward is interpreted on gradients like the results, once for each pattern of undefined gradients
that it may get. So is the Function's own `jvp`, on tangents like the arguments, where forward-mode
differentiation asks for it. They must have no side effect besides their results. Its own `vmap` is
captured when a transform asks for it (`batch_rules.py`).

`torch.autograd.grad` is one node, which runs the engine over what the graph has computed so far.
A frame's tensors know their history since the frame began. So a gradient by an input of the frame
is refused if another input was computed from something: the path through that history would be
missing.
"""

from __future__ import annotations

import inspect
import itertools
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction, Function, FunctionCtx, once_differentiable
from torch.nn.modules._functions import BackwardHookFunction

from flambeau_capture.graphs.autograd_calls import pass_hooks
from flambeau_capture.graphs.custom_function import CustomFunction, Derivative, Kept
from flambeau_capture.graphs.graph_module import build_subgraph
from flambeau_capture.interpreter.semantics.attributes import load_attr
from flambeau_capture.interpreter.substitute_registry import substitute_for
from flambeau_capture.interpreter.substitutes.batch_rules import FunctionsCalled
from flambeau_capture.interpreter.torch_calls.contexts import forward_levels
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.fake import is_outside_history, make_fake
from flambeau_prims.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from flambeau_capture.graphs.custom_function import Defined
    from flambeau_capture.graphs.graph_module import Lifted
    from flambeau_capture.interpreter.machine import Machine
    from flambeau_capture.record import Call, GraphValue

_PATTERNS = 3
"""Up to so many results the backward is captured for every pattern of undefined gradients."""

_FORWARD = frozenset({"torch.func.jvp", "torch.func.jacfwd"})
"""The transforms that ask a Function for its jvp."""

_PLAIN_RESULTS = (type(None), int, float, bool, str, torch.dtype, torch.device, torch.Size)
_ONCE = {
    code for code in once_differentiable.__code__.co_consts if isinstance(code, types.CodeType)
}


class Context(FunctionCtx):
    """The `ctx` of a captured call. FunctionCtx's methods store their arguments as attributes."""

    needs_input_grad: tuple[bool, ...]

    _saved_in = "to_save"

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What save_for_backward was given; within `jvp`, save_for_forward."""
        return tuple(self.__dict__.get(self._saved_in, ()))

    def __getattr__(self, name: str) -> Any:
        if hasattr(BackwardCFunction, name):
            raise GraphBreak("autograd-function", f"ctx.{name} is read")
        raise AttributeError(f"'Context' object has no attribute {name!r}")


_APPLY: Any = inspect.getattr_static(Function, "apply")
"""A class method: in Python up to torch 2.13, in C from 2.14 on."""


@substitute_for(getattr(_APPLY, "__func__", _APPLY))
def _apply(machine: Machine, args: Any, kwargs: Any) -> Any:
    cls, *rest = args
    if cls is BackwardHookFunction:
        return machine.tape.call_function(pass_hooks, tuple(rest))
    return _Application(machine, cls, rest, kwargs).run()


def _break(cls: type, detail: str) -> GraphBreak:
    return GraphBreak("autograd-function", f"{cls.__qualname__}: {detail}")


class _WrongDerivatives(GraphBreak):
    """The program's backward returns invalid gradients, which eager reports when it runs; or its
    jvp invalid tangents.
    """

    def __init__(self, cls: type, detail: str) -> None:
        super().__init__("autograd-function", f"{cls.__qualname__}: {detail}")


@dataclass
class _Forward:
    """A recorded forward: its calls, the fakes of its tensor results, and its whole result."""

    calls: list[Call]
    outputs: list[torch.Tensor] = field(default_factory=list)
    returned: Any = None

    @property
    def items(self) -> tuple[Any, ...]:
        """What the forward returns, one by one."""
        return self.returned if type(self.returned) is tuple else (self.returned,)


def _places(
    arguments: list[GraphValue], outputs: list[GraphValue]
) -> dict[GraphValue, tuple[Any, int]]:
    """Where the forward's caller has a value: among its arguments, or among the results."""
    found: dict[GraphValue, tuple[Any, int]] = {}
    for name, values in (("argument", arguments), ("output", outputs)):
        for at, value in enumerate(values):
            found.setdefault(value, (name, at))
    return found


class _Application:
    """One call of `cls.apply`."""

    def __init__(
        self, machine: Machine, cls: type[Function], args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        self.machine, self.tape, self.cls = machine, machine.tape, cls
        self.ctx = Context()
        forward = load_attr(machine, cls, "forward")
        setup = load_attr(machine, cls, "setup_context")
        self.setup = None if setup is Function.setup_context else setup
        if self.setup is not None:
            bound = inspect.signature(forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = list(bound.args), bound.kwargs
        if kwargs:
            raise _break(cls, "apply takes no keyword arguments")
        self.function, self.args = forward, args
        self.tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        transformed = bool(machine.transforms)
        if transformed and self.setup is None:
            raise _break(cls, "a Function without setup_context is called in a function transform")
        self.maps_itself = transformed and load_attr(machine, cls, "vmap") is not Function.vmap
        self.jvp = load_attr(machine, cls, "jvp")
        # In a backward, the tensors would require grad if that is differentiated in turn.
        always = transformed or machine.backwards > 0
        self.ctx.needs_input_grad = tuple(
            isinstance(arg, torch.Tensor) and (arg.requires_grad or always) for arg in args
        )
        self.differentiated = any(self.ctx.needs_input_grad) and (
            torch.is_grad_enabled()
            or machine.backwards == 1
            or (transformed and machine.backwards <= len(machine.transforms))
        )
        self.transformed = transformed

    def run(self) -> Any:
        """Interpret both functions, record the node, and give what the program's apply gives."""
        mark = self.tape.values_made()
        try:
            node, lifted = self._node(mark)
        finally:
            self.tape.mark_inside(mark, f"{self.cls.__qualname__}.forward")
        if self.maps_itself:
            called = self.machine.state_of(FunctionsCalled)
            called.add(node, self.mapped, forward=self._result, lifted=lifted)
        arguments = self.tape.fakes_of(lifted)
        results = self.tape.call_function(node, (*self.tensors, *arguments))
        return self._returned(results)

    def _node(self, mark: int) -> tuple[CustomFunction, list[Lifted]]:
        forward = self._forward()
        self._result = forward.returned
        outputs = [self.tape.value_of(output) for output in forward.outputs]
        backward = self._backward()
        backwards = {}
        if self.differentiated and backward is not None:
            backwards = self._backwards(backward, forward)
        is_forward = forward_levels(self.machine) or _FORWARD & set(self.machine.transforms)
        pushes = is_forward and self.jvp is not Function.jvp
        jvps = self._jvps(forward) if pushes else {}
        derivatives = [*backwards.values(), *jvps.values()]
        arguments = [self.tape.value_of(tensor) for tensor in self.tensors]
        inner = {value for _, value in self.tape.made_since(mark).values()}
        places = _places(arguments, outputs)
        kept: dict[GraphValue, None] = {}
        for captured in derivatives:
            kept.update((v, None) for v in captured.lifted if v in inner or v in places)
        extras = [value for value in kept if value not in places]
        if extras and self.transformed:
            detail = "a derivative reads a tensor that the forward neither takes nor returns"
            raise _break(self.cls, detail)
        places.update((value, ("extra", at)) for at, value in enumerate(extras))
        graph, lifted = build_subgraph(arguments, forward.calls, [*outputs, *extras])
        forward_lifted = len(lifted)
        every: dict[Lifted, int] = {value: at for at, value in enumerate(lifted)}
        for captured in derivatives:
            for value in captured.lifted:
                if value not in kept:
                    every.setdefault(value, len(every))
        saved = {self.tape.value_of(t) for t in self._saved()}
        order = {value: at for at, value in enumerate(kept)}
        node = CustomFunction(
            name=self.cls.__name__,
            forward=graph,
            arguments=len(arguments),
            forward_lifted=forward_lifted,
            outputs=len(outputs),
            backwards=None
            if backward is None
            else {key: captured.placed(order, every) for key, captured in backwards.items()},
            jvps={key: captured.placed(order, every) for key, captured in jvps.items()},
            rules=[] if self.maps_itself else None,
            kept=tuple(Kept(*places[value], value in saved) for value in kept),
            dirty=self._positions("dirty_tensors", self.tensors),
            non_differentiable=self._positions("non_differentiable", forward.outputs),
            materialize_grads=self.ctx.__dict__.get("materialize_grads", True),
            once_differentiable=self._is_once(),
            generate_vmap_rule=bool(load_attr(self.machine, self.cls, "generate_vmap_rule")),
        )
        return node, list(every)

    # ------------------------------------------------------------ forward

    def _forward(self) -> _Forward:
        machine, ctx = self.machine, self.ctx
        with machine.tape.recording(grad=False) as calls:
            if self.setup is None:
                returned = machine.call(self.function, (ctx, *self.args), {})
            else:
                returned = machine.call(self.function, tuple(self.args), {})
                machine.call(self.setup, (ctx, tuple(self.args), returned), {})
        found = _Forward(calls, returned=returned)
        for item in found.items:
            if isinstance(item, torch.Tensor):
                found.outputs.append(item)
            elif type(item) not in _PLAIN_RESULTS:
                raise _break(self.cls, f"forward returns a {type(item).__name__}")
        if not found.outputs:
            raise _break(self.cls, "forward returns no tensor")
        return found

    def _returned(self, results: tuple[Any, ...]) -> Any:
        """The program's result with the node's tensors in it."""
        remaining = iter(results)
        returned = self._result
        if type(returned) is not tuple:
            return next(remaining)
        return tuple(
            next(remaining) if isinstance(item, torch.Tensor) else item for item in returned
        )

    def _saved(self) -> list[torch.Tensor]:
        stored = self.ctx.__dict__
        given = (*stored.get("to_save", ()), *stored.get("saved_for_forward", ()))
        for item in given:
            if item is not None and not isinstance(item, torch.Tensor):
                raise _break(self.cls, f"save_for_backward is given a {type(item).__name__}")
        return [item for item in given if item is not None]

    def _positions(self, attribute: str, among: list[torch.Tensor]) -> tuple[int, ...]:
        places = {id(tensor): at for at, tensor in enumerate(among)}
        given = self.ctx.__dict__.get(attribute, ())
        if any(id(item) not in places for item in given):
            raise _break(self.cls, f"{attribute} names a tensor that is none of {attribute[:-8]}")
        return tuple(dict.fromkeys(places[id(item)] for item in given))

    # ------------------------------------------------------------ derivatives

    def _backward(self) -> Any:
        """The program's backward; None in a transform that may do without one."""
        backward = load_attr(self.machine, self.cls, "backward")
        if backward is Function.backward:
            backward = load_attr(self.machine, self.cls, "vjp")
        return None if self.transformed and backward is Function.vjp else backward

    def _backwards(self, function: Any, forward: _Forward) -> dict[Defined, _CapturedDerivative]:
        marked = {id(item) for item in self.ctx.__dict__.get("non_differentiable", ())}
        patterns = self._patterns(
            (True,) * len(forward.outputs),
            [id(output) not in marked and _has_derivatives(output) for output in forward.outputs],
        )
        found: dict[Defined, _CapturedDerivative] = {}
        for pattern in patterns:
            needed = pattern == patterns[0] and not self.machine.backwards
            captured = self._tried(function, forward, pattern, needed=needed)
            if captured is not None:
                found[pattern] = captured
        return found

    def _jvps(self, forward: _Forward) -> dict[Defined, _CapturedDerivative]:
        differentiable = [_has_derivatives(tensor) for tensor in self.tensors]
        before = self.machine.objects.side_effects_so_far()
        self.ctx._saved_in = "saved_for_forward"
        found: dict[Defined, _CapturedDerivative] = {}
        for pattern in self._patterns(tuple(differentiable), differentiable):
            if not any(pattern):
                continue  # no tangent, so nobody asks
            try:
                found[pattern] = self._derivative(
                    self.jvp,
                    self.args,
                    pattern,
                    lambda result: self._each_a_tensor("jvp", result, forward.items),
                    grad=None,
                )
            except Exception:
                if not found:
                    raise
                self.machine.breaks.forget()
        del self.ctx._saved_in
        if self.machine.objects.side_effects_so_far() != before:
            raise _break(self.cls, "jvp changes objects that exist outside it")
        return found

    def _patterns(self, materialized: Defined, differentiable: list[bool]) -> list[Defined]:
        """Which gradients of outputs, or tangents of arguments, a method may be given; undefined
        ones are materialized unless the Function asks for None.
        """
        if self.ctx.__dict__.get("materialize_grads", True):
            return [materialized]
        if sum(differentiable) > _PATTERNS:
            raise _break(
                self.cls, f"more than {_PATTERNS} tensors, and set_materialize_grads(False)"
            )
        choices = [(True, False) if each else (False,) for each in differentiable]
        return list(itertools.product(*choices))

    def _tried(
        self, function: Any, forward: _Forward, pattern: Defined, *, needed: bool
    ) -> _CapturedDerivative | None:
        """The backward for a pattern; None if it raises, or cannot be differentiated in turn. Then
        CustomFunction raises when it is called so.
        """
        machine = self.machine
        inner = machine.backwards > 0
        before = machine.objects.side_effects_so_far()
        machine.backwards += 1
        try:
            return self._derivative(function, forward.items, pattern, self._gradients, grad=False)
        except (GraphBreak, Exception) as error:
            is_eagers = isinstance(error, (Exception, _WrongDerivatives))
            if needed or not (inner or is_eagers):
                raise
            machine.breaks.forget()
            return None
        finally:
            machine.backwards -= 1
            if machine.objects.side_effects_so_far() != before:
                raise _break(self.cls, "backward changes objects that exist outside it")

    def _is_once(self) -> bool:
        backward = load_attr(self.machine, self.cls, "backward")
        return getattr(backward, "__code__", None) in _ONCE

    def _derivative(
        self,
        function: Any,
        like: Sequence[Any],
        pattern: Defined,
        results_of: Callable[[Any], list[torch.Tensor | None]],
        *,
        grad: bool | None,
    ) -> _CapturedDerivative:
        """`backward` or `jvp`, on the defined ones of tensors like those in `like`."""
        tape = self.tape
        parameters: list[torch.Tensor] = []
        given: list[Any] = []
        defined = iter(pattern)
        for item in like:
            if isinstance(item, torch.Tensor) and next(defined):
                spec = item.spec  # type: ignore[attr-defined]
                parameter = make_fake(Spec.of(spec.shape, dtype=spec.dtype, device=spec.device))
                tape.declare(parameter, f"gradient_{len(parameters)}")
                parameters.append(parameter)
                given.append(parameter)
            else:
                given.append(None)
        with tape.recording(grad=grad, autocast=grad is None) as calls:
            result = self.machine.call(function, (self.ctx, *given), {})
        results = results_of(result)
        graph_results = [tape.value_of(item) for item in results if item is not None]
        graph, lifted = build_subgraph(
            [tape.value_of(parameter) for parameter in parameters], calls, graph_results
        )
        count = iter(range(len(graph_results)))
        positions = tuple(None if item is None else next(count) for item in results)
        return _CapturedDerivative(graph, lifted, positions)

    def _gradients(self, result: Any) -> list[torch.Tensor | None]:
        """A gradient or None for each tensor argument."""
        found = list(result) if type(result) in (tuple, list) else [result]
        while len(found) > len(self.args) and found[-1] is None:
            found.pop()
        return self._each_a_tensor("backward", tuple(found), self.args)

    def _each_a_tensor(
        self, method: str, result: Any, of: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        """The results of a method that belong to the tensors in `of`."""
        found = result if type(result) in (tuple, list) else (result,)
        if len(found) != len(of):
            detail = f"{method} returns {len(found)} derivatives for {len(of)} values"
            raise _WrongDerivatives(self.cls, detail)
        derivatives: list[torch.Tensor | None] = []
        for item, derivative in zip(of, found, strict=True):
            if isinstance(item, torch.Tensor):
                if derivative is not None and not isinstance(derivative, torch.Tensor):
                    detail = f"{method} returns a {type(derivative).__name__}"
                    raise _WrongDerivatives(self.cls, detail)
                derivatives.append(derivative)
            elif derivative is not None:
                detail = f"{method} returns a derivative of what is no tensor"
                raise _WrongDerivatives(self.cls, detail)
        return derivatives

    # ------------------------------------------------------------ vmap

    def mapped(self, info: Any, in_dims: Sequence[int | None], tensors: Sequence[Any]) -> Any:
        """Interpret the program's `vmap` on tensors with their batch dimensions."""
        given, dims = iter(tensors), iter(in_dims)
        args, all_dims = [], []
        for arg in self.args:
            is_tensor = isinstance(arg, torch.Tensor)
            args.append(next(given) if is_tensor else arg)
            all_dims.append(next(dims) if is_tensor else None)
        rule = load_attr(self.machine, self.cls, "vmap")
        return self.machine.call(rule, (info, tuple(all_dims), *args), {})


def _has_derivatives(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


@dataclass(frozen=True, eq=False)
class _CapturedDerivative:
    """A graph of `backward` or `jvp`, its lifted values, and which results are the derivatives."""

    graph: fx.GraphModule
    lifted: list[Any]
    results: tuple[int | None, ...]

    def placed(self, kept: dict[Any, int], lifted: dict[Any, int]) -> Derivative:
        """The Derivative with the positions of its arguments; kept tensors come first."""
        ordered = [v for v in self.lifted if v in kept] + [v for v in self.lifted if v not in kept]
        _reorder_placeholders(self.graph, self.lifted, ordered)
        return Derivative(
            self.graph,
            tuple(kept[v] for v in ordered if v in kept),
            tuple(lifted[v] for v in ordered if v not in kept),
            self.results,
        )


def _reorder_placeholders(graph: fx.GraphModule, now: list[Any], wanted: list[Any]) -> None:
    """Put the last placeholders of a graph, which stand for `now`, into the order of `wanted`."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    first = len(placeholders) - len(now)
    node_of = dict(zip(now, placeholders[first:], strict=True))
    if not wanted or now == wanted:
        return
    after = node_of[now[-1]].next
    for value in wanted:
        after.prepend(node_of[value])


# ---------------------------------------------------------------- autograd grad

_NAMES = (
    "outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs",
    "allow_unused", "is_grads_batched", "materialize_grads",
)  # fmt: skip


def _grad_break(detail: str) -> GraphBreak:
    return GraphBreak("backward", f"torch.autograd.grad {detail}")


@substitute_for(torch.autograd.grad)
def _grad(machine: Machine, args: Any, kwargs: Any) -> Any:
    named = dict(zip(_NAMES, args, strict=False)) | kwargs
    outputs, inputs = _tensors(named["outputs"]), _tensors(named["inputs"])
    given = named.get("grad_outputs")
    grad_outputs = None if given is None else _tensors(given)
    if named.get("is_grads_batched"):
        raise _grad_break("with is_grads_batched=True")
    if grad_outputs is not None and any(_is_symbolic(tensor) for tensor in outputs):
        raise _grad_break("with grad_outputs of symbolic sizes")
    _check_history(machine, outputs, [tensor for tensor in inputs if tensor is not None])
    options = {name: named[name] for name in _NAMES[3:] if name in named}
    if grad_outputs is not None:
        options = {"grad_outputs": grad_outputs, **options}
    tape = machine.tape
    gradients = tape.call_function(torch.autograd.grad, (outputs, inputs), options)
    retains = named.get("retain_graph")
    if not (named.get("create_graph") if retains is None else retains) and not tape.subgraphs:
        tape.calls[-1].pure = False  # it frees the history, whoever uses the gradients
    return gradients


def _tensors(value: Any) -> list[Any]:
    found = [value] if isinstance(value, torch.Tensor) else value
    if not isinstance(found, (list, tuple)):
        raise _grad_break(f"of a {type(value).__name__}")
    if not all(item is None or isinstance(item, torch.Tensor) for item in found):
        raise _grad_break("of what is no tensor")
    return list(found)


def _is_symbolic(tensor: torch.Tensor) -> bool:
    return tensor.spec.env is not None  # type: ignore[attr-defined]


def _check_history(
    machine: Machine, outputs: list[torch.Tensor], inputs: list[torch.Tensor]
) -> None:
    if any(not handle.is_removed for handle in machine.tape.hooks):
        raise _grad_break("when hooks are registered in the frame")
    of_frame = [tensor for tensor in inputs if machine.tape.input_of(tensor) is not None]
    if any(machine.tape.input_of(tensor)[0]._backward_hooks for tensor in of_frame):  # type: ignore[index]
        raise _grad_break("by a tensor with hooks")
    if not of_frame:
        return
    beyond = _history_outside(outputs)
    own = {of_frame[0].grad_fn} if len(of_frame) == 1 else set()
    if beyond - own:
        raise _grad_break("by an input of the frame, beside another input that has a history")


def _history_outside(outputs: list[torch.Tensor]) -> set[Any]:
    """The nodes where the outputs' history leaves the frame, into that of its inputs."""
    pending = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen: set[Any] = set()
    found: set[Any] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if is_outside_history(node):
            found.add(node)
            continue
        pending += [following for following, _ in node.next_functions if following is not None]
    return found
