"""Reading an exported graph from a file, without running code that the file brings.

The functions of the graph are looked up by name among torch's operators (`targets.py`); classes of
containers are taken from the modules that the process has imported, and only namedtuples,
dataclasses and subclasses of builtin containers, or from what the caller passes; sizes are
arithmetic that is read, not evaluated as Python.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.exported import targets
from flambeau_capture.exported.codec import TreeReader, check, decode, decode_spec
from flambeau_capture.exported.contents import Ambient, Condition, GraphInput, Mutation, Symbol
from flambeau_capture.exported.graph import ExportedGraph
from flambeau_capture.exported.graphs import decode_graph, identifier
from flambeau_capture.exported.signature import CallSignature, Parameter
from flambeau_capture.exported.size_text import assume, holds
from flambeau_capture.exported.tree import class_name
from flambeau_capture.exported.write import FORMAT, VERSION
from flambeau_capture.graphs.graph_module import CapturedGraphModule
from flambeau_prims import sizes
from flambeau_prims.sizes import SizeEnv

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from flambeau_prims.sizes import Size


class ExportFileError(ValueError):
    """A file is no exported graph, is damaged, of another version, or needs what this process does
    not have.
    """


def load(path: str | os.PathLike[str], *, classes: Iterable[type] = ()) -> ExportedGraph:
    """The exported graph in a file; ExportFileError says why there is none.

    `classes` are plain classes of the program's arguments and results that are no dataclasses;
    namedtuples, dataclasses and subclasses of builtin containers are found when their module has
    been imported.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            head = _json(archive, "format.json")
            _check_head(head)
            return _read(archive, _json(archive, "graph.json"), tuple(classes))
    except (OSError, ExportFileError):
        raise
    except targets.UnknownTarget as error:
        raise ExportFileError(f"{path}: {error.args[0]}") from error
    except (
        zipfile.BadZipFile, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, RuntimeError, NotImplementedError,
    ) as error:  # fmt: skip
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
    archive: zipfile.ZipFile, data: dict[str, Any], classes: tuple[type, ...]
) -> ExportedGraph:
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
    conditions = tuple(Condition(*condition) for condition in data["conditions"])
    hints = {name: hint for name, hint, *_ in data["symbols"]}
    for condition in conditions:
        check(holds(condition.text, hints), f"{condition.text} does not hold for the example")
        assume(condition.text, symbols)
    module = CapturedGraphModule(torch.nn.Module(), graph)
    module.meta["size_env"] = env
    exported = ExportedGraph(
        name=str(data["name"]),
        graph_module=module,
        signature=CallSignature(parameters, tuple(data["paths"]), positional, tuple(keywords)),
        inputs=tuple(
            GraphInput(kind, name, index, tuple(also)) for kind, name, index, also in data["inputs"]
        ),
        input_specs=input_specs,
        result=trees.read(data["result"]),
        state=_state(archive, data["state"]),
        symbols=tuple(Symbol(*symbol) for symbol in data["symbols"]),
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


def _check_whole(exported: ExportedGraph) -> None:
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
