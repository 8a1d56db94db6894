"""What an exported graph holds: the graph, how it is called, its tensors, sizes and conditions."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from flambeau_capture.exported.signature import InputMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import fx

    from flambeau_capture.exported.signature import CallSignature
    from flambeau_capture.exported.tree import Tree
    from flambeau_prims.sizes import Expr
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
class GraphContents:
    """The fields of an ExportedGraph, which says what they are for."""

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
