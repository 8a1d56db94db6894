"""Files of exported graphs: a zip of JSON and raw tensor data, without pickle.

format.json      {"format": "flambeau exported graph", "version": 1, "torch": "2.13.0",
                 "byteorder": "little"}
graph.json       everything but the tensors' data: nodes, trees, specs, sizes, guards (`codec.py`
                 has the forms)
graph.txt        the graph as text, for people; reading ignores it
tensors/0.bin    the bytes of one storage; tensors that share memory share it

Reading runs no code that the file brings. The functions of the graph are looked up by name among
torch's operators (`targets.py`). Classes of containers are taken from the modules that the process
has imported, and only namedtuples, dataclasses and subclasses of builtin containers, or from what
the caller passes. Sizes are arithmetic that is read, not evaluated as Python.
"""

from __future__ import annotations

import ctypes
import dataclasses
import inspect
import json
import sys
import zipfile
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from flambeau_capture.exported import targets
from flambeau_capture.exported.codec import (
    TreeReader,
    TreeWriter,
    check,
    decode,
    decode_graph,
    decode_spec,
    encode,
    encode_graph,
    encode_spec,
    identifier,
)
from flambeau_capture.exported.contents import (
    Ambient,
    GraphContents,
    GraphInput,
    Mutation,
    SizeCondition,
    SizeSymbol,
)
from flambeau_capture.exported.signature import CallSignature, Parameter
from flambeau_capture.exported.tree import class_name
from flambeau_capture.graphs.graph_module import CapturedGraphModule
from flambeau_prims import sizes
from flambeau_prims.size_text import assume, holds
from flambeau_prims.sizes import SizeEnv

if TYPE_CHECKING:
    import os

    from flambeau_prims.sizes import Size

E = TypeVar("E", bound=GraphContents)

FORMAT = "flambeau exported graph"
VERSION = 1


def save_graph(exported: GraphContents, path: str | os.PathLike[str]) -> None:
    """Write an exported graph; a TypeError names what a file cannot hold, and writes nothing."""
    tensors = _TensorWriter()
    data = _contents(exported, tensors)
    head = {
        "format": FORMAT,
        "version": VERSION,
        "torch": torch.__version__,
        "byteorder": sys.byteorder,
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("format.json", json.dumps(head, indent=1))
        archive.writestr("graph.json", json.dumps(data), zipfile.ZIP_DEFLATED)
        archive.writestr("graph.txt", str(exported), zipfile.ZIP_DEFLATED)
        for at, storage in enumerate(tensors.storages):
            with archive.open(f"tensors/{at}.bin", "w", force_zip64=True) as file:
                if storage.nbytes():
                    file.write(
                        memoryview(
                            (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
                        )
                    )


def _contents(exported: GraphContents, tensors: _TensorWriter) -> dict[str, Any]:
    trees = TreeWriter()
    env = exported.graph_module.meta.get("size_env")
    declared = {symbol.name for symbol in exported.symbols}
    signature = exported.signature
    data = {
        "name": exported.name,
        "symbols": [dataclasses.astuple(symbol) for symbol in exported.symbols],
        "computed_symbols": [
            [name, atom.hint]
            for name, atom in (env.symbols if env is not None else {}).items()
            if name not in declared
        ],
        "conditions": [dataclasses.astuple(condition) for condition in exported.conditions],
        "parameters": [
            [
                parameter.name,
                parameter.kind.name,
                trees.write(parameter.tree),
                parameter.given,
                None if parameter.default is None else trees.write(parameter.default),
            ]
            for parameter in signature.parameters
        ],
        "paths": signature.paths,
        "called_with": [signature.positional, signature.keywords],
        "inputs": [[item.kind, item.name, item.index, item.also] for item in exported.inputs],
        "input_specs": [encode_spec(spec) for spec in exported.input_specs],
        "state": [tensors.write(name, tensor) for name, tensor in exported.state.items()],
        "graph": encode_graph(exported.graph_module.graph),
        "result": trees.write(exported.result),
        "mutations": [dataclasses.astuple(mutation) for mutation in exported.mutations],
        "guards": exported.guards,
        "default_dtype": encode(exported.ambient.default_dtype),
        "autocast": [[kind, encode(dtype)] for kind, dtype in exported.ambient.autocast],
    }
    data["classes"] = list(trees.classes)
    return data


class _TensorWriter:
    """Collects the storages behind tensors, each once."""

    def __init__(self) -> None:
        self.storages: list[torch.UntypedStorage] = []
        self._number_of: dict[int, int] = {}
        self._kept: list[torch.UntypedStorage] = []

    def write(self, name: str, tensor: torch.Tensor) -> dict[str, Any]:
        """The description of one tensor, without the bytes of its storage."""
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            raise TypeError(
                f"an exported file cannot hold {name}: a tensor with {tensor.layout} on "
                f"{tensor.device}"
            )
        storage = tensor.untyped_storage()
        number = self._number_of.get(storage._cdata)
        if number is None:
            number = self._number_of[storage._cdata] = len(self.storages)
            self._kept.append(storage)  # keeps the id its own
            self.storages.append(storage.cpu())
        return {
            "name": name,
            "storage": number,
            "dtype": encode(tensor.dtype),
            "device": encode(tensor.device),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": tensor.storage_offset(),
            "parameter": isinstance(tensor, torch.nn.Parameter),
            "requires_grad": tensor.requires_grad,
        }


# ---------------------------------------------------------------- reading

_DAMAGED = (
    zipfile.BadZipFile, ValueError, KeyError, TypeError, IndexError, AttributeError,
    RecursionError, RuntimeError, NotImplementedError,
)  # fmt: skip
"""What reading a damaged file may raise."""


class ExportFileError(ValueError):
    """A file is no exported graph, damaged, of another version, or needs what is missing here."""


def read_graph(cls: type[E], path: str | os.PathLike[str], classes: tuple[type, ...]) -> E:
    """The exported graph in a file, as an object of `cls`; see `graph.load`."""
    try:
        with zipfile.ZipFile(path) as archive:
            head = _json(archive, "format.json")
            _check_head(head)
            return _read(cls, archive, _json(archive, "graph.json"), classes)
    except (OSError, ExportFileError):
        raise
    except targets.UnknownTarget as error:
        raise ExportFileError(f"{path}: {error.args[0]}") from error
    except _DAMAGED as error:
        raise ExportFileError(
            f"{path} is no exported graph, or damaged: {type(error).__name__}: {error}"
        ) from error


def _json(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    data = json.loads(archive.read(name))
    check(isinstance(data, dict), f"{name} holds no object")
    return data  # type: ignore[no-any-return]


def _check_head(head: dict[str, Any]) -> None:
    check(head.get("format") == FORMAT, f"its format is {head.get('format')!r}")
    if head.get("version") != VERSION:
        raise ExportFileError(
            f"the file has version {head.get('version')!r} of the format; this "
            f"flambeau_capture reads version {VERSION}"
        )
    if head.get("byteorder") != sys.byteorder:
        raise ExportFileError(f"the file's tensors are {head.get('byteorder')}-endian")


def _read(
    cls: type[E], archive: zipfile.ZipFile, data: dict[str, Any], classes: tuple[type, ...]
) -> E:
    trees = TreeReader(_classes(data["classes"], classes))
    env, symbols = _symbols(data)
    parameters = tuple(
        Parameter(
            identifier(name),
            inspect._ParameterKind[kind],
            trees.read(tree),
            bool(given),
            None if default is None else trees.read(default),
        )
        for name, kind, tree, given, default in data["parameters"]
    )
    positional, keywords = data["called_with"]
    graph = decode_graph(data["graph"], symbols)
    input_specs = tuple(decode_spec(spec, symbols) for spec in data["input_specs"])
    conditions = tuple(SizeCondition(*condition) for condition in data["conditions"])
    hints = {name: hint for name, hint, *_ in data["symbols"]}
    for condition in conditions:
        check(holds(condition.text, hints), f"{condition.text} does not hold for the example")
        assume(condition.text, symbols)
    module = CapturedGraphModule(torch.nn.Module(), graph)
    module.meta["size_env"] = env
    exported = cls(
        name=str(data["name"]),
        graph_module=module,
        signature=CallSignature(parameters, tuple(data["paths"]), positional, tuple(keywords)),
        inputs=tuple(
            GraphInput(kind, name, index, tuple(also)) for kind, name, index, also in data["inputs"]
        ),
        input_specs=input_specs,
        result=trees.read(data["result"]),
        state=_state(archive, data["state"]),
        symbols=tuple(SizeSymbol(*symbol) for symbol in data["symbols"]),
        conditions=conditions,
        guards=tuple(data["guards"]),
        mutations=tuple(Mutation(*mutation) for mutation in data["mutations"]),
        ambient=Ambient(
            decode(data["default_dtype"], {}),
            tuple((kind, decode(dtype, {})) for kind, dtype in data["autocast"]),
        ),
    )
    _check_whole(exported)
    return exported


def _check_whole(exported: GraphContents) -> None:
    """The parts of a file agree with one another."""
    placeholders = sum(node.op == "placeholder" for node in exported.graph_module.graph.nodes)
    check(placeholders == len(exported.inputs), "placeholders and inputs differ in number")
    check(
        len(exported.input_specs) == len(exported.signature.paths),
        "specs and inputs differ in number",
    )
    for item in exported.inputs:
        known = (
            0 <= item.index < len(exported.input_specs)
            if item.kind == "argument"
            else item.name in exported.state
        )
        check(known, f"the input {item.name} is not there")


def _symbols(data: dict[str, Any]) -> tuple[SizeEnv | None, dict[str, Size]]:
    found: dict[str, Size] = {}
    env = SizeEnv()
    for name, hint, lower, upper, source, _ in data["symbols"]:
        check(type(hint) is int, "a symbol without a size")
        found[name] = env.symbol(hint, source, lower=lower, name=identifier(name))
        if upper is not None:
            sizes.le(found[name], upper)
    for name, hint in data["computed_symbols"]:
        found[name] = env.symbol(hint, name, lower=None, name=identifier(name))
    return (env if found else None), found


def _classes(names: list[str], given: tuple[type, ...]) -> dict[str, type]:
    """The classes that a file names: those given, or of their kinds, those of imported modules."""
    found = {class_name(cls): cls for cls in given}
    for name in names:
        if name not in found:
            found[name] = _imported_class(name)
    return found


def _imported_class(name: str) -> type:
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        value: Any = sys.modules.get(".".join(parts[:cut]))
        if value is None:
            continue
        for part in parts[cut:]:
            value = inspect.getattr_static(value, part, None)
        if isinstance(value, type) and class_name(value) == name:
            plain = issubclass(
                value, (tuple, list, dict, set, frozenset)
            ) or dataclasses.is_dataclass(value)
            if plain:
                return value
            raise ExportFileError(
                f"the file's result holds a {name}, which is no dataclass or container: "
                f"load(path, classes=[{parts[-1]}])"
            )
    module = ".".join(parts[:-1])
    raise ExportFileError(
        f"the file needs the class {name}: import {module} first, or load(path, "
        f"classes=[{parts[-1]}])"
    )


def _state(archive: zipfile.ZipFile, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    storages: dict[tuple[int, torch.device], torch.UntypedStorage] = {}
    found: dict[str, torch.Tensor] = {}
    for item in items:
        device, dtype = decode(item["device"], {}), decode(item["dtype"], {})
        number = item["storage"]
        check(type(number) is int, "a tensor without a storage")
        storage = storages.get((number, device))
        if storage is None:
            storage = storages[number, device] = _storage(
                archive.read(f"tensors/{number}.bin"), device
            )
        shape, stride, offset = item["shape"], item["stride"], item["offset"]
        extents = [*shape, *stride, offset]
        check(all(type(size) is int and size >= 0 for size in extents), f"sizes of {item['name']}")
        last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        if 0 not in shape:
            check((last + 1) * dtype.itemsize <= storage.nbytes(), f"{item['name']} has no data")
        tensor = torch.empty(0, dtype=dtype, device=device)
        if 0 not in shape:
            tensor.set_(storage, offset, shape, stride)  # type: ignore[call-overload]
        else:
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        if item["parameter"]:
            tensor = torch.nn.Parameter(tensor, requires_grad=bool(item["requires_grad"]))
        elif item["requires_grad"]:
            tensor.requires_grad_()
        found[item["name"]] = tensor
    return found


def _storage(data: bytes, device: torch.device) -> torch.UntypedStorage:
    if not data:
        return torch.UntypedStorage(0, device=device)
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    if device.type == "cpu":
        return tensor.untyped_storage()
    try:
        return tensor.to(device).untyped_storage()
    except (RuntimeError, AssertionError) as error:
        raise ExportFileError(
            f"the file's tensors are on {device}, which this process has not: {error}"
        ) from error
