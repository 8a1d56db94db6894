"""Graphs in pieces on disk: a process that finds one cuts nothing, and finds the pieces' entries.

    graph   {"split": {"objects": [...], "graph": [...], "pieces": {...}, "choices": {...}}, ...}
    entry   of each piece, by the key of the graph, the piece's name, and the types of arguments

    y = x[mask]         ->  ["call_function", "y", {"constant": {"object": 0}}, [...], []]
    (z,) = piece_0(y)   ->  ["call_module", "z", "piece_0", [{"node": "y"}], []]

Functions and constants are found, and compared, as those of entries are
(`flambeau_capture.stored.encoding`). A piece is a function of the stack below: its entries are
stored as they are made, with their guards.
"""

from __future__ import annotations

import dataclasses
import json
import keyword
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from torch import fx
from torch.fx.immutable_collections import immutable_dict, immutable_list

from flambeau import stored_graphs
from flambeau.not_stored import NotStored
from flambeau.split_graph import (
    Piece,
    PieceName,
    SplitGraph,
    compile_piece,
    constants_of,
    holder_of,
)
from flambeau.stored_entries import FORMAT, StoredEntries, store_of
from flambeau.surroundings import surroundings
from flambeau_capture.graphs.control_flow import ControlFlow
from flambeau_capture.graphs.graph_module import CapturedGraphModule
from flambeau_capture.graphs.node_records import NODE_RECORDS
from flambeau_capture.stored.decoding import Decoder
from flambeau_capture.stored.encoding import Encoder
from flambeau_capture.stored.reasons import NotStorable
from flambeau_prims.lazy_exports import import_apart
from flambeau_runtime.cache import key_of

if TYPE_CHECKING:
    import types
    from collections.abc import Collection

    from flambeau.compile_context import Backend, Compiled, Context
    from flambeau.report import GraphReport
    from flambeau_capture.compiled import CompiledState

Json = Any

# ---------------------------------------------------------------- written


def _nothing() -> None: ...


_of_no_function = cast("types.FunctionType", _nothing)
"""In the place of an entry's function, to whose code and globals nothing leads here."""


def encode_split(split: SplitGraph) -> dict[str, Json]:
    """The data of a cut graph; NotStored where it cannot be written."""
    encoder = Encoder(_of_no_function)
    try:
        data = {
            "graph": _encode_graph(encoder, split.graph),
            "constants": _encode_constants(encoder, split.constants),
            "pieces": {
                name: [
                    _encode_graph(encoder, piece.graph),
                    {source: sorted(dims) for source, dims in piece.dynamic.items()},
                    _encode_constants(encoder, piece.constants),
                ]
                for name, piece in split.pieces.items()
            },
            "choices": {name: _encode_part(encoder, node) for name, node in split.choices.items()},
        }
        return {**encoder.tables(()), **data}
    except NotStorable as error:
        raise NotStored("foreign-call", str(error)) from None


def _encode_graph(encoder: Encoder, graph: fx.Graph) -> list[Json]:
    return [
        [
            node.op,
            node.name,
            _encode_part(encoder, node.target) if node.op == "call_function" else node.target,
            [_encode_argument(encoder, arg) for arg in node.args],
            [[name, _encode_argument(encoder, arg)] for name, arg in node.kwargs.items()],
        ]
        for node in graph.nodes
    ]


def _encode_argument(encoder: Encoder, arg: Any) -> Json:
    kind = type(arg)
    if kind is fx.Node:
        return {"node": arg.name}
    if kind in (tuple, list, immutable_list):
        items = [_encode_argument(encoder, item) for item in arg]
        return {"tuple" if kind is tuple else "list": items}
    if kind in (dict, immutable_dict):
        pairs = [[key, _encode_argument(encoder, item)] for key, item in arg.items()]
        return {"dict": pairs}
    if kind is slice:
        parts = (arg.start, arg.stop, arg.step)
        return {"slice": [_encode_argument(encoder, part) for part in parts]}
    return {"constant": encoder.value(arg)}


def _encode_constants(encoder: Encoder, constants: dict[str, Any]) -> dict[str, Json]:
    return {name: encoder.value(value) for name, value in constants.items()}


def _encode_part(encoder: Encoder, value: Any) -> Json:
    """A node that holds graphs, or a part of one."""
    kind = type(value)
    if kind is PieceName:
        return {"piece": value.name}
    if isinstance(value, fx.GraphModule):
        constants = _encode_constants(encoder, constants_of(value))
        return {"graph": [_encode_graph(encoder, value.graph), constants]}
    if NODE_RECORDS.get(kind.__name__) is kind:
        fields = dataclasses.fields(value)
        parts = {item.name: _encode_part(encoder, getattr(value, item.name)) for item in fields}
        return {"record": [kind.__name__, parts]}
    if isinstance(value, Mapping):
        pairs = [[encoder.value(key), _encode_part(encoder, item)] for key, item in value.items()]
        return {"map": pairs}
    if kind in (tuple, list):
        return {"each": [_encode_part(encoder, item) for item in value]}
    return {"constant": encoder.value(value)}


# ---------------------------------------------------------------- read


def decode_split(data: dict[str, Json]) -> SplitGraph:
    """What `encode_split` wrote; what `stored_graphs.UNREADABLE` lists where it is not that."""
    decoder = Decoder(data, None, None)  # type: ignore[arg-type]  # of objects with names alone
    pieces = {
        name: Piece(
            _decode_graph(decoder, graph, ()),
            {str(source): frozenset(map(int, dims)) for source, dims in dynamic.items()},
            _decode_constants(decoder, constants),
        )
        for name, (graph, dynamic, constants) in data["pieces"].items()
    }
    choices = {
        name: _decode_choice(decoder, node, pieces) for name, node in data["choices"].items()
    }
    graph = _decode_graph(decoder, data["graph"], {**pieces, **choices}.keys())
    return SplitGraph(graph, pieces, choices, _decode_constants(decoder, data["constants"]))


def _decode_graph(decoder: Decoder, nodes: list[Json], modules: Collection[str]) -> fx.Graph:
    graph = fx.Graph()
    known: dict[str, fx.Node] = {}
    for op, name, target, args, kwargs in nodes:
        decoded = tuple(_decode_argument(decoder, arg, known) for arg in args)
        named = {_name(key): _decode_argument(decoder, arg, known) for key, arg in kwargs}
        if op == "output":
            graph.output(*decoded)
            return graph
        if op == "call_function":
            called = _decode_part(decoder, target)
            if not callable(called):
                raise ValueError(f"{name} calls no function")
        elif op not in ("placeholder", "get_attr", "call_method", "call_module"):
            raise ValueError(f"{name} is a node of kind {op}")
        elif op == "call_module" and target not in modules:
            raise ValueError(f"{name} calls no piece")
        else:
            called = _name(target)
        if _name(name) in known:
            raise ValueError(f"two nodes are called {name}")
        known[name] = graph.create_node(op, called, decoded, named, name)
    raise ValueError("a graph without an output")


def _decode_argument(decoder: Decoder, data: Json, known: dict[str, fx.Node]) -> Any:
    ((tag, content),) = data.items()
    if tag == "node":
        return known[content]
    if tag == "constant":
        return decoder.value(content)
    if tag == "dict":
        return {key: _decode_argument(decoder, item, known) for key, item in content}
    items = [_decode_argument(decoder, item, known) for item in content]
    if tag == "slice":
        return slice(*items)
    return {"tuple": tuple, "list": list}[tag](items)


def _decode_constants(decoder: Decoder, constants: dict[str, Json]) -> dict[str, Any]:
    return {_name(name): decoder.value(value) for name, value in constants.items()}


def _decode_part(decoder: Decoder, data: Json) -> Any:
    ((tag, content),) = data.items()
    match tag:
        case "piece":
            return PieceName(content)
        case "graph":
            graph, constants = content
            root = holder_of(_decode_constants(decoder, constants))
            return CapturedGraphModule(root, _decode_graph(decoder, graph, ()))
        case "record":
            name, parts = content
            fields = {key: _decode_part(decoder, part) for key, part in parts.items()}
            return NODE_RECORDS[name](**fields)
        case "map":
            return {decoder.value(key): _decode_part(decoder, part) for key, part in content}
        case "each":
            return tuple(_decode_part(decoder, part) for part in content)
        case "constant":
            return decoder.value(content)
    raise ValueError(f"{tag!r} is no part of a node")


def _decode_choice(decoder: Decoder, data: Json, pieces: Collection[str]) -> ControlFlow:
    node = _decode_part(decoder, data)
    if not isinstance(node, ControlFlow):
        raise ValueError("no node of control flow")
    parts = (getattr(node, item.name) for item in dataclasses.fields(node))  # type: ignore[arg-type]
    if any(isinstance(part, PieceName) and part.name not in pieces for part in parts):
        raise ValueError("a node of control flow without its pieces")
    return node


def _name(name: Any) -> str:
    """A name that may stand in generated code; ValueError for anything else."""
    known = isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
    if not known:
        raise ValueError(f"{name!r} is no name")
    return str(name)


# ---------------------------------------------------------------- pieces


class PieceEntries(StoredEntries):
    """The entries of a piece, under the key of its graph, which is in the cache itself."""

    def __init__(self, context: Context, whole: GraphReport, name: str) -> None:
        super().__init__(context)
        self._whole = whole
        self._name = name

    def read(self, key: tuple[str, ...]) -> list[Any]:
        """`StoredEntries.read`; none where the graph is not in the cache."""
        return super().read(key) if self._whole.key else []

    def write(self, key: tuple[str, ...], entry: Any) -> None:
        """`StoredEntries.write`; NotStorable where the graph is not in the cache."""
        if not self._whole.key:
            raise NotStorable("graph", "the graph that it is a piece of")
        super().write(key, entry)

    def _key(self, key: tuple[str, ...]) -> str:
        # Its code is the graph's; only arguments tell its calls apart.
        own = (self._whole.key, self._name, key[-1])
        described = [FORMAT, *surroundings(self._context), *own]
        return key_of(json.dumps(described, allow_nan=False))

    def _graphs(self) -> list[GraphReport]:
        return self._whole.pieces

    def load_graph(self, data: Any) -> Compiled | None:
        """The compiled graph of a key, as one of the graph's pieces."""
        whole = self._whole
        return stored_graphs.load_graph(data["key"], data["calls"], self._context, whole)


def callable_of(
    split: SplitGraph, whole: GraphReport, context: Context, backend: Backend, *, stores: bool
) -> Compiled:
    """The callable of a cut graph, whose pieces are compiled by `backend` if they are not stored,
    or not to be; `whole`: the report of the graph.
    """
    stores = stores and store_of(context, "inductor") is not None

    def compiled(name: str, piece: Piece) -> Compiled:
        def attach(state: CompiledState) -> None:
            whole.add_piece(name, state)
            if stores:
                state.entry_store = PieceEntries(context, whole, name)

        return compile_piece(piece, backend, attach)

    return split.callable(compiled)


def callable_of_stored(split: SplitGraph, whole: GraphReport, context: Context) -> Compiled:
    """The callable of a cut graph that was read from the cache."""

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Compiled:
        backends = import_apart("flambeau.backends")
        compiled: Compiled = backends.piece_of_inductor(context, whole)(gm, example_inputs)
        return compiled

    return callable_of(split, whole, context, backend, stores=True)
