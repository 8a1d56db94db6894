"""ExportedGraph: one call captured whole, as a value.

    exported = flambeau_capture.export(model, (x,), dynamic_shapes={"x": {0: Dim("batch")}})
    exported(y)                       checked inputs in, the model's own structure out
    exported.print_readable()         the graph as text
    exported.save("model.flambeau")   a file without pickle, which `load` reads where the model's
                                      source is not

Parameters, buffers and other tensors that the program read are *lifted*: they are placeholders of
the graph. The ExportedGraph holds them in `state` under their names in `state_dict()` and passes
them. Nothing is read from the model again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.exported.contents import GraphContents, graph_text
from flambeau_capture.exported.files import read_graph, save_graph
from flambeau_capture.exported.signature import InputMismatch
from flambeau_capture.exported.svg import svg_of
from flambeau_capture.exported.tree import Values, build
from flambeau_prims import size_text
from flambeau_prims.sizes import Expr
from flambeau_prims.symbols import symbol_reads

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, MutableMapping

    from flambeau_prims.sizes import Size
    from flambeau_prims.spec import Spec


class ExportedGraph(GraphContents):
    """A captured call: its graph, signature and tensors. Calls check inputs and run the graph."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The exported function's result; InputMismatch if the arguments do not fit the export."""
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
        """The result for checked inputs; `state` receives what the program replaces."""
        outputs = tuple(self.graph_module(*self._flat(leaves, state)))
        for mutation in self.mutations:
            if mutation.kind == "rebind":
                state[mutation.target] = outputs[mutation.output]
        values = Values(
            outputs, leaves, containers, state, lambda text: size_text.evaluate(text, sizes)
        )
        return build(self.result, values)

    def flat_inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The placeholders' values for these arguments, in order: a backend's example inputs."""
        leaves, _ = self.signature.match(args, kwargs)
        self.sizes_of(leaves)
        return self._flat(leaves, self.state)

    def _flat(self, leaves: list[Any], state: Mapping[str, torch.Tensor]) -> list[Any]:
        return [
            leaves[item.index] if item.kind == "argument" else state[item.name]
            for item in self.inputs
        ]

    def sizes_of(self, leaves: list[Any]) -> dict[str, int]:
        """The symbols' values on these inputs, which are checked against specs and conditions."""
        for spec, leaf, path in zip(self.input_specs, leaves, self.signature.paths, strict=True):
            _check_kind(spec, leaf, path)
        values = self.read_symbols(leaves)
        for spec, leaf, path in zip(self.input_specs, leaves, self.signature.paths, strict=True):
            _check_extents(spec, leaf, path, values)
        for condition in self.conditions:
            if not size_text.holds(condition.text, values):
                names = sorted(size_text.names_in(condition.text))
                found = ", ".join(f"{name} is {values[name]}" for name in names)
                at = f" (required at {condition.where})" if condition.where else ""
                raise InputMismatch(f"{condition.text} does not hold{at}: {found}")
        return values

    def read_symbols(self, leaves: list[Any]) -> dict[str, Any]:
        """The symbols' values on these inputs."""
        reads = symbol_reads(self.input_specs, derived=True)
        return {name: read.value(leaves) for name, read in reads.items()}

    def print_readable(self, *, print_output: bool = True) -> str:
        """The graph as text, printed unless `print_output` is False."""
        text = graph_text(self)
        if print_output:
            print(text)
        return text

    def to_svg(self, path: str | os.PathLike[str]) -> None:
        """Draw the graph into an SVG file, in layers; hover over a call for its whole text."""
        Path(path).write_text(svg_of(self), encoding="utf-8")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for `flambeau_capture.load`; TypeError for what a file cannot hold."""
        save_graph(self, path)


def load(path: str | os.PathLike[str], *, classes: Iterable[type] = ()) -> ExportedGraph:
    """The exported graph in a file; ExportFileError says why there is none.

    `classes` are plain classes of the program's arguments and results that are no dataclasses;
    namedtuples, dataclasses and subclasses of builtin containers are found when their module has
    been imported.
    """
    return read_graph(ExportedGraph, path, tuple(classes))


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
