"""A graph in pieces, as data: the calls between the pieces, the pieces, and who calls which.

    SplitGraph  graph:    x -> piece_0(x) -> item -> choice_0(item, x) -> ...
                pieces:   {"piece_0": Piece(graph, {"L['x']": {0}}), ...}
                choices:  {"choice_0": Conditional(true=PieceName("piece_1"), ...)}

`SplitGraph.callable` runs it. `graph_split` makes one of a captured graph, `stored_splits` reads
one that an earlier process has made.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

import flambeau_capture
from flambeau_capture import CaptureOptions, state_of
from flambeau_capture.graphs.higher_order import CompiledGraph

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau_capture.compiled import CompiledState
    from flambeau_capture.graphs.control_flow import ControlFlow

    Compiled = Callable[..., tuple[Any, ...]]
    Backend = Callable[[fx.GraphModule, list[Any]], Compiled]


@dataclass(frozen=True, slots=True)
class Piece:
    """A graph that is compiled as a separate function; `dynamic` are the dims that are symbolic
    from the first call on, by the text of the source (-1: the number itself).
    """

    graph: fx.Graph
    dynamic: dict[str, frozenset[int]]
    constants: dict[str, Any] = field(default_factory=dict)
    """What `get_attr` reads."""


@dataclass(frozen=True, slots=True)
class PieceName:
    """What stands for a piece in a node of control flow."""

    name: str


@dataclass(frozen=True, slots=True)
class SplitGraph:
    """The graph that calls the pieces and choices by their names, as modules, and holds constants
    as attributes.
    """

    graph: fx.Graph
    pieces: dict[str, Piece] = field(default_factory=dict)
    choices: dict[str, ControlFlow] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)

    def add_piece(self, piece: Piece) -> str:
        """The name of a new piece."""
        name = f"piece_{len(self.pieces)}"
        self.pieces[name] = piece
        return name

    def add_choice(self, node: ControlFlow, piece: Callable[[fx.GraphModule], Piece]) -> str:
        """The name of a node of control flow, whose graphs become pieces."""
        name = f"choice_{len(self.choices)}"
        self.choices[name] = node.with_graphs(
            fx.GraphModule, lambda module: PieceName(self.add_piece(piece(module)))
        )
        return name

    def callable(self, compiled: Callable[[str, Piece], Compiled]) -> Compiled:
        """A callable as the graph that was cut; `compiled` gives that of a piece."""
        made = {name: compiled(name, piece) for name, piece in self.pieces.items()}
        root = holder_of(self.constants)
        for name, run in made.items():
            setattr(root, name, run)
        for name, node in self.choices.items():
            chosen = node.with_graphs(
                PieceName,
                lambda part: CompiledGraph(self.pieces[part.name].graph, made[part.name]),
            )
            setattr(root, name, chosen)
        forward: Compiled = fx.GraphModule(root, self.graph, "GraphInPieces").forward
        return forward


def compile_piece(
    piece: Piece, backend: Backend, attach: Callable[[CompiledState], None]
) -> Compiled:
    """A piece as a function that the rest of the stack captures; `attach` gets its state."""
    plain = fx.GraphModule(holder_of(piece.constants), piece.graph, "Piece")
    # Marks on tensors are the program's, and the graph as a whole is what they demand.
    options = CaptureOptions(dynamic_shapes=None)
    compiled = flambeau_capture.compile(plain.forward, backend=backend, options=options)
    state = state_of(compiled)
    state.expect_dynamic(piece.dynamic)
    attach(state)
    return compiled


def constants_of(gm: fx.GraphModule) -> dict[str, Any]:
    """What the nodes of a graph read of its module."""
    names = [str(node.target) for node in gm.graph.find_nodes(op="get_attr")]
    return {name: operator.attrgetter(name)(gm) for name in names}


def holder_of(constants: dict[str, Any]) -> torch.nn.Module:
    """A module with these attributes."""
    root = torch.nn.Module()
    for name, value in constants.items():
        object.__setattr__(root, name, value)
    return root
