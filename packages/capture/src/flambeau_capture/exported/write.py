"""Writing an exported graph to a file: a zip of JSON and raw tensor data, without pickle. `read.py`
reads it.

format.json      {"format": "flambeau exported graph", "version": 1, "torch": "2.13.0", "byteorder":
                 "little"}
graph.json       everything but the tensors' data: nodes, trees, specs, sizes, guards (`codec.py`
                 has the forms)
graph.txt        the graph as text, for people; reading ignores it
tensors/0.bin    the bytes of one storage; tensors that share memory share it
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.exported.codec import TreeWriter, encode, encode_spec
from flambeau_capture.exported.graphs import encode_graph

if TYPE_CHECKING:
    import os

    from flambeau_capture.exported.contents import GraphContents

FORMAT = "flambeau exported graph"
VERSION = 1


def save_graph(exported: GraphContents, path: str | os.PathLike[str]) -> None:
    """Write an exported graph; TypeError names what a file cannot hold, and nothing is written
    then.
    """
    tensors = _TensorWriter()
    data = _graph_data(exported, tensors)
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


def _graph_data(exported: GraphContents, tensors: _TensorWriter) -> dict[str, Any]:
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
        """What is said of one tensor beside its storage's bytes."""
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
