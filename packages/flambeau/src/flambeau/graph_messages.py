"""A captured graph as data, for the process that compiles it: the graph, what the compiler sees of
its inputs, the options and torch's state.

    graph, inputs, options, key  ->  JSON  ->  an equal graph, inputs without values, options

The receiver computes the key of what it has read (`stored_graphs`). If that is not the sender's,
something of the graph got lost on the way, and it compiles nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flambeau.compile_context import Context
from flambeau.environment import Environment
from flambeau.held_graphs import graphs_within
from flambeau.options import Options
from flambeau.report import Report
from flambeau_autograd.options import AutogradOptions
from flambeau_autograd.traced_modes import TracedModes
from flambeau_capture.exported.codec import decode, decode_graph, encode, encode_graph, identifier
from flambeau_capture.graphs.graph_module import CapturedGraphModule
from flambeau_capture.options import CaptureOptions
from flambeau_inductor.options import InductorOptions
from flambeau_prims.size_floats import named_symbol
from flambeau_prims.size_text import read_condition
from flambeau_prims.sizes import SizeEnv
from flambeau_runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import fx

_STAGES = {
    "capture": CaptureOptions,
    "autograd": AutogradOptions,
    "inductor": InductorOptions,
    "runtime": RuntimeOptions,
    "environment": Environment,
}


# ---------------------------------------------------------------- written


def encode_message(
    gm: fx.GraphModule, examples: list[Any], context: Context, key: str
) -> dict[str, Any]:
    """The message; TypeError names what it cannot hold."""
    memory: dict[int, int] = {}
    return {
        "key": key,
        "name": context.report.name,
        "graph": encode_graph(gm.graph),
        "sizes": gm.meta.get("sizes", []),
        "observed_is_compiling": gm.meta["observed_is_compiling"],
        "inputs": [
            {"number": encode(x)}
            if type(x) in (int, float)
            else _input(x, memory.setdefault(x.untyped_storage()._cdata, position))
            for position, x in enumerate(examples)
        ],
        "options": {stage: _fields(getattr(context.options, stage)) for stage in _STAGES},
        "state": {name: encode(read()) for name, (read, _) in _SETTINGS.items()},
        "inference_mode": torch.is_inference_mode_enabled(),
    }


def _input(x: torch.Tensor, memory: int) -> dict[str, Any]:
    return {
        "dtype": encode(x.dtype),
        "device": encode(x.device),
        "shape": list(x.shape),
        "stride": list(x.stride()),
        "offset": int(x.storage_offset()),
        "parameter": type(x) is torch.nn.Parameter,
        "requires_grad": x.requires_grad,
        "leaf": x.is_leaf,
        "view": x._is_view(),
        "inference": x.is_inference(),
        "memory": memory,
        "bytes": x.untyped_storage().nbytes(),
    }


def _fields(options: Any) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for item in dataclasses.fields(options):
        value = getattr(options, item.name)
        if isinstance(value, Path):
            written[item.name] = {"path": str(value.absolute())}
        elif isinstance(value, frozenset):
            written[item.name] = {"set": sorted(value)}
        else:
            written[item.name] = encode(value)
    return written


# ---------------------------------------------------------------- read


def decode_message(data: dict[str, Any]) -> tuple[fx.GraphModule, list[Any], Context]:
    """The graph, inputs and options of a message."""
    env, symbols = _symbols(data["sizes"])
    gm = CapturedGraphModule(torch.nn.Module(), decode_graph(data["graph"], symbols))
    # Behind the graph: an equality replaces symbols in what is read then.
    _take_guards(data["sizes"], symbols)
    for graph in graphs_within(gm):
        for node in graph.nodes:
            if node.op in ("call_function", "call_method") and "pure" in node.meta:
                node.meta["stack_trace"] = node.meta["where"]
    gm.meta["size_env"] = env
    gm.meta["observed_is_compiling"] = data["observed_is_compiling"]
    memory: dict[int, torch.UntypedStorage] = {}
    examples = [
        decode(item["number"], {}) if "number" in item else _decoded_input(item, memory)
        for item in data["inputs"]
    ]
    stages: dict[str, Any] = {
        stage: cls(**{name: _field(value) for name, value in data["options"][stage].items()})
        for stage, cls in _STAGES.items()
    }
    quiet = dataclasses.replace(stages["environment"], progress=False, logs=frozenset())
    return gm, examples, Context(Options(**{**stages, "environment": quiet}), Report(data["name"]))


def _symbols(data: list[Any]) -> tuple[SizeEnv | None, dict[str, Any]]:
    """The symbols of `graph_content.sizes_as_json` by name, and their env."""
    if not data:
        return None, {}
    env = SizeEnv()
    return env, {name: named_symbol(env, identifier(name), hint) for name, hint in data[0]}


def _take_guards(data: list[Any], symbols: dict[str, Any]) -> None:
    """Have the env of symbols take its guards."""
    for condition in [read_condition(guard, symbols) for guard in data[1]] if data else ():
        (condition.args[0] if condition.op == "not" else condition).ask()


def _decoded_input(item: dict[str, Any], memory: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    device = decode(item["device"], {})
    with torch.inference_mode(item["inference"]):
        if item["memory"] not in memory:
            memory[item["memory"]] = _memory(item["bytes"], device, len(memory))
        x = torch.empty(0, dtype=decode(item["dtype"], {}), device=device)
        x.set_(memory[item["memory"]], item["offset"], item["shape"], item["stride"])  # type: ignore[call-overload]
        if item["parameter"]:
            return torch.nn.Parameter(x, requires_grad=item["requires_grad"])
        if item["requires_grad"] and (item["leaf"] or item["view"]):
            x.requires_grad_()
        if not item["leaf"] and not item["view"]:
            with torch.enable_grad():
                computed: torch.Tensor = _Computed.apply(torch.zeros(()).requires_grad_(), (x,))
            return computed
        if item["view"]:
            with torch.set_grad_enabled(not item["leaf"]):
                # As a view of itself, with the strides of dims of size 1, too.
                x = x.as_strided(x.size(), x.stride(), x.storage_offset())
        return x


def _memory(size: int, device: torch.device, number: int) -> torch.UntypedStorage:
    """Memory of an input whose values nobody reads: on a GPU, an address where there is none."""
    if device.type == "cpu":
        return torch.UntypedStorage(size)
    address = (number + 1) << 44
    construct: Any = torch._C._construct_storage_from_data_pointer
    storage: torch.UntypedStorage = construct(address, device, size)
    return storage


class _Computed(torch.autograd.Function):
    """A tensor as an operator's result: neither a leaf nor a view."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, held: tuple[torch.Tensor]) -> torch.Tensor:
        return held[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return None, None


def _field(data: Any) -> Any:
    if isinstance(data, dict) and data.keys() == {"path"}:
        return Path(data["path"])
    if isinstance(data, dict) and data.keys() == {"set"}:
        return frozenset(data["set"])
    return decode(data, {})


# ---------------------------------------------------------------- torch's state


def _modes() -> tuple[Any, ...]:
    return dataclasses.astuple(TracedModes.current())


_SETTINGS: dict[str, tuple[Any, Any]] = {
    "grad_enabled": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "modes": (_modes, lambda modes: TracedModes(*modes).enter()),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic": (
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode,
    ),
}  # fmt: skip
"""States that the receiver takes over; the key tells whether another one differs."""


@contextlib.contextmanager
def state_of_message(data: dict[str, Any]) -> Iterator[None]:
    """A block under torch's state of the sender; what it leaves, the next message sets."""
    for name, (read, write) in _SETTINGS.items():
        value = decode(data["state"][name], {})
        if read() != value:
            write(value)
    gradients = decode(data["state"]["grad_enabled"], {})  # which inference mode turns off
    with torch.inference_mode(data["inference_mode"]), torch.set_grad_enabled(gradients):
        yield
