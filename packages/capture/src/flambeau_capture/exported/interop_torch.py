"""Exported graphs as torch.export.ExportedPrograms, for the tools that take those:
torch.export.save, AOTInductor, torch.onnx.

    program = to_exported_program(exported)
    program.module()(x, mask=m)       the same program; arguments are passed as in the export's call
    torch.onnx.export(program, f="model.onnx")

torch.export's own tracer runs the graph once more, on tensors of the export's sizes, as the forward
of a module that holds the lifted tensors under their names. Sizes that vary are torch.export.Dims
of the same names and ranges.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.exported import tree as trees
from flambeau_prims.sizes import Expr, hint_of
from flambeau_prims.symbols import affine

if TYPE_CHECKING:
    from flambeau_capture.exported.graph import ExportedGraph
    from flambeau_prims.spec import Spec


def to_exported_program(exported: ExportedGraph) -> torch.export.ExportedProgram:
    """The ExportedProgram of an exported graph; TypeError for arguments that torch.export cannot
    take, and whatever it raises itself.
    """
    import torch.export

    for parameter in exported.signature.parameters:
        for tree in trees.walk(parameter.tree):
            if isinstance(tree, trees.Opaque):
                raise TypeError(f"{parameter.name}: torch.export takes no {tree.type_name}")
    dims = {
        symbol.name: torch.export.Dim(symbol.name, min=symbol.lower, max=symbol.upper)
        for symbol in exported.symbols
        if symbol.named
    }
    leaves = [_example(spec) for spec in exported.input_specs]
    shapes = [_shapes(spec, dims) for spec in exported.input_specs]
    args, kwargs = _call(
        exported, lambda tree: trees.build(tree, trees.Values(tuple(leaves), [], [], {}, str))
    )
    said_args, said_kwargs = _call(exported, lambda tree: _nested(tree, shapes))
    said = _signature(exported).bind(*said_args, **said_kwargs)
    return torch.export.export(
        _GraphModule(exported),
        args,
        kwargs,
        dynamic_shapes=dict(said.arguments) if exported.symbols else None,
        strict=False,
    )


class _GraphModule(torch.nn.Module):
    """The exported graph as a module that holds the state under its names."""

    def __init__(self, exported: ExportedGraph) -> None:
        super().__init__()
        self._exported = exported
        for name, tensor in exported.state.items():
            path, _, last = name.rpartition(".")
            owner: torch.nn.Module = self
            for part in path.split(".") if path else ():
                if part not in owner._modules:
                    owner.add_module(part, torch.nn.Module())
                owner = owner.get_submodule(part)
            if isinstance(tensor, torch.nn.Parameter):
                owner.register_parameter(last, tensor)
            else:
                owner.register_buffer(last, tensor)
        self.forward = self._forward()  # type: ignore[method-assign]

    def _forward(self) -> Any:
        """The program as a function whose signature torch.export reads."""
        exported = self._exported

        def forward(*args: Any, **kwargs: Any) -> Any:
            leaves, containers = exported.signature.match(args, kwargs)
            return exported.run(leaves, containers, exported.read_symbols(leaves), _State(self))

        forward.__signature__ = _signature(exported)  # type: ignore[attr-defined]
        return forward


def _signature(exported: ExportedGraph) -> inspect.Signature:
    """The parameters of the exported function, all of them optional: what a call must give is
    checked by `match`.

    The keywords of **kwargs stand by themselves, since torch.export does not take sizes that vary
    in a **kwargs.
    """
    found: list[inspect.Parameter] = []
    for item in exported.signature.parameters:
        if item.kind is inspect.Parameter.VAR_KEYWORD and isinstance(item.tree, trees.Entries):
            names = [key.value for key, _ in item.tree.items if isinstance(key, trees.Constant)]
            found += [_keyword(name) for name in names]
        elif item.kind is inspect.Parameter.VAR_POSITIONAL:
            found.append(inspect.Parameter(item.name, item.kind))
        else:
            found.append(inspect.Parameter(item.name, item.kind, default=None))
    return inspect.Signature(found)


def _keyword(name: str) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)


class _State(MutableMapping[str, torch.Tensor]):
    """The tensors of a module by their names."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def _owner(self, name: str) -> tuple[torch.nn.Module, str]:
        path, _, last = name.rpartition(".")
        return self._module.get_submodule(path), last

    def __getitem__(self, name: str) -> torch.Tensor:
        owner, last = self._owner(name)
        found: torch.Tensor = getattr(owner, last)
        return found

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        owner, last = self._owner(name)
        setattr(owner, last, value)

    def __delitem__(self, name: str) -> None:
        raise TypeError("an exported program's state keeps its names")

    def __iter__(self) -> Iterator[str]:
        return (
            name for name, _ in (*self._module.named_parameters(), *self._module.named_buffers())
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)


# ---------------------------------------------------------------- the example call


def _example(spec: Spec | Expr) -> Any:
    if isinstance(spec, Expr):
        return spec.hint
    shape, stride = map(hint_of, spec.shape), map(hint_of, spec.stride)
    return torch.empty_strided(
        tuple(shape), tuple(stride), dtype=spec.dtype, device=spec.device
    ).zero_()


def _shapes(spec: Spec | Expr, dims: dict[str, Any]) -> Any:
    """What torch.export takes for one input."""
    if isinstance(spec, Expr):
        return torch.export.Dim.AUTO  # torch.export names no ints
    return dims_of(spec, dims)


def dims_of(spec: Spec, dims: dict[str, Any]) -> dict[int, Any]:
    """The Dims of a tensor's symbolic sizes, for torch.export; `dims` has one a symbol."""
    return {dim: _dim(size, dims) for dim, size in enumerate(spec.shape) if isinstance(size, Expr)}


def _dim(size: Expr, dims: dict[str, Any]) -> Any:
    parts = affine(size)
    if parts is None or parts[0] not in dims or parts[1] < 0:
        return torch.export.Dim.AUTO
    name, scale, shift = parts
    dim = dims[name] if scale == 1 else scale * dims[name]
    return dim + shift if shift > 0 else dim - -shift if shift < 0 else dim


def _nested(tree: trees.Tree, shapes: list[Any]) -> Any:
    """The shapes of the leaves, nested as torch.export nests an argument."""
    match tree:
        case trees.Leaf(index=index):
            return shapes[index]
        case trees.Items(cls=cls, items=items):
            nested = [_nested(item, shapes) for item in items]
            return nested if issubclass(cls, list) else tuple(nested)
        case trees.Entries(items=entries):
            return {
                key.value: _nested(item, shapes)
                for key, item in entries
                if isinstance(key, trees.Constant)
            }
        case trees.Fields(items=fields):
            return [_nested(item, shapes) for _, item in fields]
    return None


def _call(exported: ExportedGraph, value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The export's call, with `value(tree)` for each argument."""
    signature = exported.signature
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in signature.parameters:
        tree = parameter.tree
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL and isinstance(tree, trees.Items):
            args.extend(value(item) for item in tree.items)
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD and isinstance(tree, trees.Entries):
            kwargs |= {
                key.value: value(item)
                for key, item in tree.items
                if isinstance(key, trees.Constant)
            }
        elif parameter.name in signature.keywords:
            kwargs[parameter.name] = value(tree)
        elif len(args) < signature.positional:
            args.append(value(tree))
    return tuple(args), {name: kwargs[name] for name in signature.keywords}
