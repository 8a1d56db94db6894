"""ExportedGraph: one call captured whole, as a value.

    exported = flambeau_capture.export(model, (x,), dynamic_shapes={"x": {0:
    Dim("batch")}})
    exported(y)                       checked inputs in, the model's own structure out
    exported.print_readable()         the graph as text
    exported.save("model.flambeau")   a file without pickle; flambeau_capture.load reads it where the model's source is not

Parameters, buffers and other tensors that the program read are *lifted*: they are placeholders of
the graph, and the ExportedGraph holds them in `state` under their names in `state_dict()` and
passes them. Nothing is read from the model again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from flambeau_capture.exported import size_text
from flambeau_capture.exported.signature import InputMismatch
from flambeau_capture.exported.svg import svg_of
from flambeau_capture.exported.text import graph_text
from flambeau_capture.exported.tree import Values, build
from flambeau_capture.exported.write import save_graph
from flambeau_capture.graphs.size_nodes import affine_in_a_symbol, symbol_name
from flambeau_prims.sizes import Expr

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, MutableMapping

    from torch import fx

    from flambeau_capture.exported.signature import CallSignature
    from flambeau_capture.exported.tree import Tree
    from flambeau_prims.sizes import Size
    from flambeau_prims.spec import Spec


@dataclass(frozen=True, slots=True)
class GraphInput:
    """What one placeholder of the graph stands for.

    kind "argument": the input at the leaf `index` of the arguments, called `name` by the user (`x`,
    `masks['a']`). Other kinds: the tensor `name` of the state, which the model may hold under the
    names `also` too (tied weights).
    """

    kind: Literal["argument", "parameter", "buffer", "constant"]
    name: str
    index: int = -1
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that varies: its name, the example's value, its range, where it is read first, and
    whether a Dim named it.
    """

    name: str
    hint: int
    lower: int | None
    upper: int | None
    source: str
    named: bool = True

    def __str__(self) -> str:
        text = f"{self.name} = {self.source}"
        if self.lower is not None and self.upper is not None:
            return f"{text}, {self.lower} <= {self.name} <= {self.upper}"
        if self.lower is not None:
            text += f", {self.name} >= {self.lower}"
        return text if self.upper is None else f"{text}, {self.name} <= {self.upper}"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on sizes under which the graph is right, and the line of the program that made it
    ("" for declared ones).
    """

    text: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Mutation:
    """What a call changes besides its result.

    kind "write": the graph writes the tensor's memory in place. kind "rebind": the model's
    attribute `target` becomes the graph's output `output`; an ExportedGraph does that to its own
    `state`.
    """

    kind: Literal["write", "rebind"]
    what: Literal["argument", "parameter", "buffer", "constant"]
    target: str
    output: int = -1

    def __str__(self) -> str:
        verb = "writes to" if self.kind == "write" else "replaces"
        return f"{verb} {self.what} {self.target}"


@dataclass(frozen=True, slots=True)
class Ambient:
    """The states of torch that the graph was exported under and runs under: default dtype, and
    autocast by device.
    """

    default_dtype: torch.dtype
    autocast: tuple[tuple[str, torch.dtype], ...] = ()

    @classmethod
    def now(cls) -> Ambient:
        """This thread's."""
        kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        return cls(
            torch.get_default_dtype(),
            tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds),
        )

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Autocast as at export, for as long as the block runs."""
        if torch.get_default_dtype() != self.default_dtype:
            raise InputMismatch(
                f"the default dtype was {self.default_dtype} in the export and is "
                f"{torch.get_default_dtype()} now"
            )
        here = Ambient.now()
        with contextlib.ExitStack() as stack:
            if here != self:
                for kind in dict.fromkeys(kind for kind, _ in (*self.autocast, *here.autocast)):
                    dtype = dict(self.autocast).get(kind)
                    stack.enter_context(torch.autocast(kind, dtype, enabled=dtype is not None))
            yield


@dataclass(frozen=True, slots=True, eq=False)
class ExportedGraph:
    """One captured call: a graph, how it is called, and the tensors it holds. Calling it checks the
    inputs and runs the graph.

    `graph_module` takes the values of `inputs` in order and returns a flat tuple; its nodes carry
    `meta["spec"]`, and its `meta["size_env"]` the symbolic sizes, so that it can be given to any
    backend. `state` holds the lifted tensors by name, `guards` says in words what the capture
    depended on, all of it frozen in the graph.
    """

    name: str
    graph_module: fx.GraphModule
    signature: CallSignature
    inputs: tuple[GraphInput, ...]
    input_specs: tuple[Spec | Expr, ...]
    """By leaf of the arguments: what a tensor must look like; an Expr for an int that may vary."""
    result: Tree
    state: dict[str, torch.Tensor]
    symbols: tuple[Symbol, ...]
    conditions: tuple[Condition, ...]
    guards: tuple[str, ...]
    mutations: tuple[Mutation, ...]
    ambient: Ambient

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the exported function returns on these arguments; InputMismatch where they are not
        what was exported.
        """
        leaves, containers = self.signature.match(args, kwargs)
        sizes = self.sizes_of(leaves)
        with self.ambient.entered():
            return self.run(leaves, containers, sizes, self.state)

    def run(
        self,
        leaves: list[Any],
        containers: list[Any],
        sizes: Mapping[str, Any],
        state: MutableMapping[str, torch.Tensor],
    ) -> Any:
        """The result for inputs that are known to fit; what the program replaces in its state is
        put into `state`.
        """
        outputs = tuple(self.graph_module(*self._flat(leaves, state)))
        for mutation in self.mutations:
            if mutation.kind == "rebind":
                state[mutation.target] = outputs[mutation.output]
        values = Values(
            outputs, leaves, containers, state, lambda text: size_text.evaluate(text, sizes)
        )
        return build(self.result, values)

    def flat_inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The values of the graph's placeholders, in order, for these arguments: what a backend
        calls example inputs.
        """
        leaves, _ = self.signature.match(args, kwargs)
        self.sizes_of(leaves)
        return self._flat(leaves, self.state)

    def _flat(self, leaves: list[Any], state: Mapping[str, torch.Tensor]) -> list[Any]:
        return [
            leaves[item.index] if item.kind == "argument" else state[item.name]
            for item in self.inputs
        ]

    def sizes_of(self, leaves: list[Any]) -> dict[str, int]:
        """The symbols' values on these inputs, which are checked against their specs and the
        conditions on sizes.
        """
        values: dict[str, int] = {}
        for spec, leaf, path in zip(self.input_specs, leaves, self.signature.paths, strict=True):
            _check_kind(spec, leaf, path)
            read_symbols(spec, leaf, values)
        for spec, leaf, path in zip(self.input_specs, leaves, self.signature.paths, strict=True):
            _check_extents(spec, leaf, path, values)
        for condition in self.conditions:
            if not size_text.holds(condition.text, values):
                names = sorted(size_text.names_in(condition.text))
                found = ", ".join(f"{name} is {values[name]}" for name in names)
                at = f" (required at {condition.where})" if condition.where else ""
                raise InputMismatch(f"{condition.text} does not hold{at}: {found}")
        return values

    def print_readable(self, *, print_output: bool = True) -> str:
        """The graph as text, printed too unless told otherwise: inputs, sizes, calls with specs and
        the user's lines, result.
        """
        text = graph_text(self)
        if print_output:
            print(text)
        return text

    def __str__(self) -> str:
        return graph_text(self)

    def __repr__(self) -> str:
        calls = sum(node.op.startswith("call_") for node in self.graph_module.graph.nodes)
        return f"<ExportedGraph {self.name}: {len(self.signature.paths)} inputs, {len(self.state)} lifted tensors, {calls} calls>"

    def to_svg(self, path: str | os.PathLike[str]) -> None:
        """Draw the graph into an SVG file: calls in layers, top to bottom; hover over one for its
        whole text.
        """
        Path(path).write_text(svg_of(self), encoding="utf-8")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `flambeau_capture.load` reads where the program's source is not;
        TypeError for what a file cannot hold.
        """
        save_graph(self, path)


# ---------------------------------------------------------------- checks of inputs


def _check_kind(spec: Spec | Expr, leaf: Any, path: str) -> None:
    if isinstance(spec, Expr):
        if type(leaf) is not int:
            raise InputMismatch(f"{path} is an int; a {type(leaf).__name__} is given")
        return
    if not isinstance(leaf, torch.Tensor):
        raise InputMismatch(f"{path} is a tensor; a {type(leaf).__name__} is given")
    if leaf.layout is not torch.strided:
        raise InputMismatch(f"{path} is a strided tensor; one with {leaf.layout} is given")
    for what, wanted, found in (
        ("dtype", spec.dtype, leaf.dtype),
        ("device", spec.device, leaf.device),
        ("dimensions", spec.ndim, leaf.ndim),
    ):
        if wanted != found:
            raise InputMismatch(f"{path} has {what} {found}, was exported with {wanted}")


def read_symbols(spec: Spec | Expr, leaf: Any, values: dict[str, Any]) -> None:
    """The symbols that an input gives: a size that is one, or the root of a derived size where
    nothing else has given it.
    """
    if isinstance(spec, Expr):
        name = symbol_name(spec)
        assert name is not None
        values[name] = leaf
        return
    for size, found in zip(spec.shape, leaf.shape, strict=True):
        if isinstance(size, Expr):
            affine = affine_in_a_symbol(size)
            if affine is not None:
                name, scale, shift = affine
                if symbol_name(size) is not None:
                    values[name] = found
                else:
                    values.setdefault(name, (found - shift) // scale)


def _check_extents(spec: Spec | Expr, leaf: Any, path: str, values: Mapping[str, int]) -> None:
    if isinstance(spec, Expr):
        return

    def value(size: Size) -> int:
        return size.env.evaluate(size, values) if isinstance(size, Expr) else size

    for dim, (size, found) in enumerate(zip(spec.shape, leaf.shape, strict=True)):
        if value(size) != found:
            also = f" = {value(size)}" if isinstance(size, Expr) else ""
            raise InputMismatch(
                f"{path} has size {found} in dimension {dim}, must have {size}{also}"
            )
    if 0 in leaf.shape:
        return
    for dim, (stride, found) in enumerate(zip(spec.stride, leaf.stride(), strict=True)):
        if leaf.shape[dim] > 1 and value(stride) != found:
            raise InputMismatch(
                f"{path} has strides {tuple(leaf.stride())}, must have "
                f"{tuple(map(value, spec.stride))}: pass it with the export's layout, "
                "by .contiguous() if that was contiguous"
            )
