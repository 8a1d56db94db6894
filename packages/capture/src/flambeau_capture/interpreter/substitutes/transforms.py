"""Function transforms (torch.func, torch.vmap): one node transforms a graph of the function.

    torch.func.grad(loss)(w, x)      ->      (g,) = Gradient grad {loss: ...}(w, x, *lifted)

The program's function is interpreted on tensors of the shapes that it sees inside the transform.
What it reads besides its arguments is lifted: unbatched and constant to the transform, as in eager
torch. Transforms nest: the graph may hold such nodes.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from flambeau_capture.graphs.graph_module import build_subgraph
from flambeau_capture.graphs.higher_order import (
    Gradient,
    HigherOrder,
    Jacobian,
    ReverseProduct,
    TangentProduct,
    VectorizedMap,
)
from flambeau_capture.interpreter.substitute_registry import (
    breaking,
    substitute_for,
    substitute_for_code,
    substitute_if_new,
)
from flambeau_capture.interpreter.substitutes.batch_rules import run_transform
from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.reasons import GraphBreak
from flambeau_prims.fake import make_fake

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from flambeau_capture.graphs.graph_module import Lifted
    from flambeau_capture.interpreter.machine import Machine

    Options = dict[str, Any]


# ---------------------------------------------------------------- recording what is transformed


@dataclass(frozen=True, eq=False)
class _Transformed:
    """A function as a graph: its lifted values, and the structure of its result."""

    graph: fx.GraphModule
    lifted: list[Lifted]
    result: pytree.TreeSpec
    aux: pytree.TreeSpec | None
    is_random: bool

    @property
    def results(self) -> int:
        """How many tensors the result holds, auxiliary ones aside."""
        return self.result.num_leaves


def _row(batch: torch.Tensor, dim: int) -> torch.Tensor:
    """A row of a batch, of its shape and strides; those of an empty batch have some, too."""
    if batch.shape[dim] == 0:
        shape = list(batch.shape)
        shape[dim] = 1
        batch = torch.cat([batch, batch.new_zeros(shape)], dim)
    return batch.select(dim, 0)


def _record(
    machine: Machine,
    function: Any,
    parameters: Sequence[torch.Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    what: str,
    grad: bool | None = None,
    has_aux: bool = False,
) -> _Transformed:
    """Interpret `function(*args, **kwargs)` into a graph with these `parameters`."""
    tape = machine.tape
    mark = tape.values_made()
    machine.transforms.append(what)
    try:
        values = [
            tape.declare(parameter, f"arg_{at}")  # type: ignore[arg-type]
            for at, parameter in enumerate(parameters)
        ]
        with machine.tape.recording(grad=grad) as calls:
            result = machine.call(function, args, kwargs)
        aux: Any = None
        if has_aux:
            if type(result) is not tuple or len(result) != 2:
                raise _break(f"{what} with has_aux=True of a function that returns no pair")
            result, aux = result
        leaves, spec = _tensors(result, what)
        aux_leaves, aux_spec = _tensors(aux, what) if has_aux else ([], None)
        graph, lifted = build_subgraph(
            values, calls, [tape.value_of(leaf) for leaf in (*leaves, *aux_leaves)]
        )
        is_random = any(call.random for call in calls)
        return _Transformed(graph, lifted, spec, aux_spec, is_random)
    finally:
        machine.transforms.pop()
        tape.mark_inside(mark, what)


def _break(detail: str) -> GraphBreak:
    return GraphBreak("higher-order-operator", detail)


def _tensors(tree: Any, what: str) -> tuple[list[torch.Tensor], pytree.TreeSpec]:
    """The leaves of a result, all tensors, and its structure."""
    leaves, spec = pytree.tree_flatten(tree)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise _break(f"{what} of a function that returns a {type(leaf).__name__}")
    return leaves, spec


class _Arguments:
    """The arguments of a call, with a stand-in for each tensor that the transform takes over."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.trees = [pytree.tree_flatten(arg) for arg in args]

    def leaf_positions(self, argument: int) -> range:
        """The leaves that are in an argument."""
        first = sum(len(leaves) for leaves, _ in self.trees[:argument])
        return range(first, first + len(self.trees[argument][0]))

    def replaced(self, stand_ins: dict[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """args and kwargs with leaves replaced by position."""
        leaves = [stand_ins.get(at, leaf) for at, leaf in enumerate(self.leaves)]
        found: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, self.spec)
        return found


def _apply(
    machine: Machine, node: HigherOrder, tensors: Sequence[Any], lifted: Sequence[Lifted]
) -> tuple[Any, ...]:
    arguments = (*tensors, *machine.tape.fakes_of(lifted))
    return run_transform(machine, node, arguments)  # type: ignore[no-any-return]


# ---------------------------------------------------------------- vmap


def _vmap(machine: Machine, options: Options, args: Any, kwargs: Any) -> Any:
    function = options["func"]
    given = _Arguments(args, {})
    in_dims = pytree._broadcast_to_and_flatten(options["in_dims"], pytree.tree_flatten(args)[1])
    if in_dims is None:
        raise _break("torch.vmap whose in_dims do not fit the arguments")
    mapped: list[Any] = []
    dims: list[int] = []
    stand_ins: dict[int, Any] = {}
    for at, (leaf, dim) in enumerate(zip(given.leaves, in_dims, strict=True)):
        if dim is None:
            continue
        if not isinstance(leaf, torch.Tensor) or type(dim) is not int or not leaf.ndim:
            raise _break(f"torch.vmap over a {type(leaf).__name__} in dimension {dim}")
        with torch.no_grad():
            row = _row(leaf, dim)
        stand_ins[at] = make_fake(row.spec)  # type: ignore[attr-defined]
        mapped.append(leaf)
        dims.append(dim)
    if not mapped:
        raise _break("torch.vmap over no tensor")
    inner_args, _ = given.replaced(stand_ins)
    before = machine.objects.side_effects_so_far()
    body = _record(
        machine, function, list(stand_ins.values()), inner_args, kwargs, what="torch.vmap"
    )
    if options["chunk_size"] is not None and machine.objects.side_effects_so_far() != before:
        raise _break("torch.vmap in chunks of a function that changes objects outside it")
    out_dims = pytree._broadcast_to_and_flatten(options["out_dims"], body.result)
    if out_dims is None:
        raise _break("torch.vmap whose out_dims do not fit the results")
    node = VectorizedMap(
        "vmap",
        body.graph,
        tuple(dims),
        tuple(out_dims),
        options["randomness"],
        options["chunk_size"],
    )
    return pytree.tree_unflatten(list(_apply(machine, node, mapped, body.lifted)), body.result)


# ---------------------------------------------------------------- grad, jacobians


def _differentiated(
    machine: Machine, what: str, options: Options, args: Any, kwargs: Any, *, grad: bool | None
) -> tuple[_Transformed, _Arguments, list[int], list[int]]:
    """Record a differentiated function; also its tensor leaves, and those differentiated by."""
    given = _Arguments(args, kwargs)
    argnums = options["argnums"]
    wanted: list[int] = []
    for argnum in argnums if isinstance(argnums, tuple) else (argnums,):
        if type(argnum) is not int or not -len(args) <= argnum < len(args):
            raise _break(f"{what} with argnums={argnums!r} of {len(args)} arguments")
        wanted += given.leaf_positions(argnum % len(args))
    stand_ins: dict[int, Any] = {}
    for at, leaf in enumerate(given.leaves):
        if isinstance(leaf, torch.Tensor):
            by_it = at in wanted and (leaf.is_floating_point() or leaf.is_complex())
            stand_ins[at] = make_fake(leaf.spec, requires_grad=by_it and grad is True)  # type: ignore[attr-defined]
        elif at in wanted:
            raise _break(f"{what} by a {type(leaf).__name__}")
    inner_args, inner_kwargs = given.replaced(stand_ins)
    body = _record(
        machine,
        options["func"],
        list(stand_ins.values()),
        inner_args,
        inner_kwargs,
        what=what,
        grad=grad,
        has_aux=options["has_aux"],
    )
    tensors = list(stand_ins)
    return body, given, tensors, [tensors.index(at) for at in wanted]


def _by_argument(options: Options, given: _Arguments, flat: Sequence[Any]) -> Any:
    """Values, one for each leaf differentiated by, in the structure of argnums."""
    argnums = options["argnums"]
    remaining = iter(flat)
    trees = []
    for argnum in argnums if isinstance(argnums, tuple) else (argnums,):
        leaves, spec = given.trees[argnum]
        trees.append(pytree.tree_unflatten([next(remaining) for _ in leaves], spec))
    return tuple(trees) if isinstance(argnums, tuple) else trees[0]


def _gradient(name: str, *, with_value: bool) -> Callable[..., Any]:
    def transform(machine: Machine, options: Options, args: Any, kwargs: Any) -> Any:
        body, given, tensors, wanted = _differentiated(
            machine, f"torch.func.{name}", options, args, kwargs, grad=True
        )
        if body.results != 1:
            raise _break(f"torch.func.{name} of a function that returns {body.results} tensors")
        node = Gradient(name, body.graph, tuple(wanted), len(tensors))
        leaves = [given.leaves[at] for at in tensors]
        flat = _apply(machine, node, leaves, body.lifted)
        gradients = _by_argument(options, given, flat[: len(wanted)])
        value, aux = flat[len(wanted)], list(flat[len(wanted) + 1 :])
        value = pytree.tree_unflatten([value], body.result)
        if body.aux is not None:
            tree = pytree.tree_unflatten(aux, body.aux)
            return (gradients, (value, tree)) if with_value else (gradients, tree)
        return (gradients, value) if with_value else gradients

    return transform


def _jacobian(name: str) -> Callable[..., Any]:
    def transform(machine: Machine, options: Options, args: Any, kwargs: Any) -> Any:
        reverse = name == "jacrev"
        body, given, tensors, wanted = _differentiated(
            machine, f"torch.func.{name}", options, args, kwargs, grad=True if reverse else None
        )
        extra = ("chunk_size", "_preallocate_and_copy") if reverse else ("randomness",)
        node = Jacobian(
            name,
            body.graph,
            tuple(wanted),
            len(tensors),
            body.results,
            {key: options[key] for key in extra},
        )
        leaves = [given.leaves[at] for at in tensors]
        flat = list(_apply(machine, node, leaves, body.lifted))
        count = len(wanted)
        jacobians = [
            _by_argument(options, given, flat[at * count : (at + 1) * count])
            for at in range(body.results)
        ]
        result = pytree.tree_unflatten(jacobians, body.result)
        if body.aux is None:
            return result
        return result, pytree.tree_unflatten(flat[body.results * count :], body.aux)

    return transform


# ---------------------------------------------------------------- vjp, jvp


class _ReverseFunction(Proxy):
    """The function that torch.func.vjp returns; a call recomputes the value, which graphs merge."""

    __slots__ = ("body", "leaves", "machine", "primals", "versions")

    def __init__(
        self, machine: Machine, body: _Transformed, leaves: list[Any], primals: tuple[Any, ...]
    ) -> None:
        self.machine, self.body, self.leaves, self.primals = machine, body, leaves, primals
        self.versions = self._versions()

    def _versions(self) -> list[int]:
        lifted = self.machine.tape.fakes_of(self.body.lifted)
        return [t._version for t in (*self.leaves, *lifted) if isinstance(t, torch.Tensor)]

    def __call__(self, cotangents: Any, retain_graph: Any = True, create_graph: Any = None) -> Any:
        if self._versions() != self.versions:
            raise _break("the function that torch.func.vjp returned is called after a write")
        flat, spec = _tensors(cotangents, "torch.func.vjp")
        if spec != self.body.result:
            raise _break("cotangents of another structure than the result of torch.func.vjp")
        node = ReverseProduct("vjp", self.body.graph, len(self.leaves), self.body.results)
        gradients = _apply(self.machine, node, [*self.leaves, *flat], self.body.lifted)
        trees = [pytree.tree_flatten(primal) for primal in self.primals]
        remaining = iter(gradients)
        return tuple(
            pytree.tree_unflatten([next(remaining) for _ in leaves], tree) for leaves, tree in trees
        )


def _vjp(machine: Machine, args: Any, kwargs: Any) -> Any:
    function, *primals = args
    has_aux = bool(kwargs.get("has_aux", False))
    leaves, _ = _tensors(tuple(primals), "torch.func.vjp")
    options = {"func": function, "argnums": tuple(range(len(primals))), "has_aux": has_aux}
    body, _, _, _ = _differentiated(
        machine, "torch.func.vjp", options, tuple(primals), {}, grad=True
    )
    if body.is_random:
        raise _break("torch.func.vjp of a function that draws random numbers")
    node = ReverseProduct("vjp_value", body.graph, len(leaves), 0)
    flat = list(_apply(machine, node, leaves, body.lifted))
    value = pytree.tree_unflatten(flat[: body.results], body.result)
    reverse = _ReverseFunction(machine, body, leaves, tuple(primals))
    if body.aux is None:
        return value, reverse
    return value, reverse, pytree.tree_unflatten(flat[body.results :], body.aux)


def _jvp(machine: Machine, args: Any, kwargs: Any) -> Any:
    named = dict(zip(("func", "primals", "tangents"), args, strict=False)) | kwargs
    primals, tangents = named["primals"], named["tangents"]
    if type(primals) is not tuple or type(tangents) is not tuple or named.get("strict"):
        raise _break("torch.func.jvp with strict=True, or whose primals or tangents are no tuple")
    leaves, spec = _tensors(primals, "torch.func.jvp")
    tangent_leaves, tangent_spec = _tensors(tangents, "torch.func.jvp")
    if spec != tangent_spec:
        raise _break("primals and tangents of different structure in torch.func.jvp")
    options = {
        "func": named["func"],
        "argnums": tuple(range(len(primals))),
        "has_aux": bool(named.get("has_aux", False)),
    }
    body, _, _, _ = _differentiated(machine, "torch.func.jvp", options, primals, {}, grad=None)
    node = TangentProduct("jvp", body.graph, len(leaves), body.results)
    flat = list(_apply(machine, node, [*leaves, *tangent_leaves], body.lifted))
    count = body.results
    value = pytree.tree_unflatten(flat[:count], body.result)
    tangent = pytree.tree_unflatten(flat[count : 2 * count], body.result)
    if body.aux is None:
        return value, tangent
    return value, tangent, pytree.tree_unflatten(flat[2 * count :], body.aux)


# ---------------------------------------------------------------- where the program calls them


def _code_inside(function: Any, name: str) -> types.CodeType | None:
    """The code of the function `name` that a function of torch makes and returns."""
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    constants = () if code is None else code.co_consts
    return next((c for c in constants if isinstance(c, types.CodeType) and c.co_name == name), None)


def _makes(function: Any, name: str, transform: Callable[..., Any]) -> None:
    """`function(f, ...)` only makes a function of code `name`: that is done natively, and calls of
    what it made are captured.

    Functions that were made before the frame ran are known by the same code; what they close over
    is guarded as it is read.
    """
    code = _code_inside(function, name)

    @substitute_for(function)
    def make(machine: Machine, args: Any, kwargs: Any) -> Any:
        if code is None:
            raise _break(f"call of {function.__module__}.{function.__name__}")
        made = function(*args, **kwargs)
        machine.functions.made[id(made)] = made
        return made

    if code is None:
        return

    @substitute_for_code(code)
    def call(machine: Machine, made: types.FunctionType, args: Any, kwargs: Any) -> Any:
        machine.functions.follow(made)
        machine.functions.register_closure(made)
        cells = zip(code.co_freevars, made.__closure__ or (), strict=True)
        options = {key: machine.objects.load_cell(cell, key, is_free=True) for key, cell in cells}
        return transform(machine, options, args, kwargs)


_makes(torch.vmap, "wrapped", _vmap)
_makes(torch.func.grad, "wrapper", _gradient("grad", with_value=False))
_makes(torch.func.grad_and_value, "wrapper", _gradient("grad_and_value", with_value=True))
_makes(torch.func.jacrev, "wrapper_fn", _jacobian("jacrev"))
_makes(torch.func.jacfwd, "wrapper_fn", _jacobian("jacfwd"))
substitute_for(torch.func.vjp)(_vjp)
substitute_for(torch.func.jvp)(_jvp)


for _name in ("linearize", "functionalize"):
    substitute_if_new(
        getattr(torch.func, _name), breaking("higher-order-operator", f"call of torch.func.{_name}")
    )
