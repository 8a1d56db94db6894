"""The `Call` around a graph without a backward as plain data, so that another process can use the
compiled graph: what is read back equals what was written.

    Call(passed=[0], outputs=[Result(0), View(Input(0), [view])], ...)
    ->  {"passed": [0], "outputs": [["result", 0], ["view", ...]], ...}

Only operators of ATen and plain constants can be written: nothing that is read runs code that the
data brings along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.graph_call import Call
from flambeau_autograd.outputs import Constant, Data, Input, Result, View, ViewStep
from flambeau_prims.size_text import read_size
from flambeau_prims.sizes import Expr, SizeEnv
from flambeau_prims.symbols import SymbolRead, symbol_reads

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCALARS = (int, bool, str, type(None))
_LITERAL = 4096
"""Elements of the largest tensor that is written."""
_NAMED = (torch.dtype, torch.layout, torch.memory_format)


class NotPlain(ValueError):
    """The call holds something that is no plain data."""


def encode_call(call: Call) -> dict[str, Any]:
    """The data of a call; NotPlain if it cannot be written."""
    return {
        "passed": call.passed,
        "outputs": [_encode_output(output) for output in call.outputs],
        "constants": [_encode_tensor(tensor) for tensor in call.constants],
        "copies": [list(copy) for copy in call.copies],
        "versions": sorted(call.versions.items()),
        "grad_mode": call.grad_mode,
        "no_autocast": call.no_autocast,
        "no_grad": call.no_grad,
        "inference": sorted(call.inference),
        "reads": {name: list(read) for name, read in symbol_reads(call.inputs).items()},
    }


def decode_call(data: dict[str, Any]) -> Call:
    """The call that `encode_call` wrote."""
    env = SizeEnv()
    symbols = {name: env.symbol(2, name, lower=None, name=name) for name in data["reads"]}
    return Call(
        inputs=[],
        reads={name: SymbolRead(*read) for name, read in data["reads"].items()},
        passed=data["passed"],
        outputs=[_decode_output(output, symbols) for output in data["outputs"]],
        constants=tuple(_decode_tensor(tensor) for tensor in data["constants"]),
        copies=[(target, result, writes) for target, result, writes in data["copies"]],
        versions=dict(data["versions"]),
        grad_mode=data["grad_mode"],
        no_autocast=data["no_autocast"],
        no_grad=data["no_grad"],
        inference=frozenset(data["inference"]),
    )


def _encode_output(output: Any) -> list[Any]:
    match output:
        case Result(position):
            return ["result", position]
        case Input(position):
            return ["input", position]
        case Data(base, counter):
            return ["data", _encode_output(base), counter]
        case Constant(value):
            return ["constant", encode_value(value)]
        case View(base, steps, tracked, version):
            encoded = [_encode_step(step) for step in steps]
            return ["view", _encode_output(base), encoded, tracked, version]
    raise NotPlain(f"an output is a {type(output).__name__}")


def _decode_output(data: list[Any], symbols: Mapping[str, Expr]) -> Any:
    match data:
        case ["result", position]:
            return Result(position)
        case ["input", position]:
            return Input(position)
        case ["data", base, counter]:
            return Data(_decode_output(base, symbols), counter)
        case ["constant", value]:
            return Constant(decode_value(value, symbols))
        case ["view", base, steps, tracked, version]:
            decoded = tuple(_decode_step(step, symbols) for step in steps)
            return View(_decode_output(base, symbols), decoded, tracked, version)
    raise ValueError(f"not an output: {data!r}")


def _encode_tensor(tensor: torch.Tensor) -> list[Any]:
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.is_cpu
    if not plain or tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
        raise NotPlain("the graph holds a tensor that is no literal")
    if not tensor.is_contiguous() or tensor.numel() > _LITERAL:
        raise NotPlain("the graph holds a large tensor")
    content = bytes(tensor.detach().reshape(-1).view(torch.uint8).tolist())
    return [encode_value(tensor.dtype), list(tensor.shape), content.hex()]


def _decode_tensor(data: list[Any]) -> torch.Tensor:
    dtype, shape, content = decode_value(data[0], {}), data[1], bytes.fromhex(data[2])
    with torch._C.DisableTorchFunction():
        if not content:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


def _encode_step(step: ViewStep) -> list[Any]:
    op = step.op
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
        raise NotPlain(f"a view is made by {op}")
    arguments = [[name, encode_value(value)] for name, value in step.kwargs.items()]
    return [op._schema.name, op._overloadname, encode_value(step.args), arguments, step.index]


def _decode_step(data: list[Any], symbols: Mapping[str, Expr]) -> ViewStep:
    name, overload, args, kwargs, index = data
    namespace, _, packet = name.partition("::")
    if namespace != "aten":
        raise ValueError(f"not an operator of ATen: {name}")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    named = {key: decode_value(value, symbols) for key, value in kwargs}
    return ViewStep(op, decode_value(args, symbols), named, index)


def encode_value(value: Any) -> Any:
    """A number, size, text, dtype, or a list or tuple of these; NotPlain for anything else."""
    if type(value) in _SCALARS:
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if type(value) in (tuple, list):
        return {type(value).__name__: [encode_value(item) for item in value]}
    if type(value) in _NAMED:
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, Expr):
        return {"size": str(value)}
    raise NotPlain(f"an output or a view holds a {type(value).__name__}")


def decode_value(data: Any, symbols: Mapping[str, Expr]) -> Any:
    """What `encode_value` wrote, over these symbols."""
    if not isinstance(data, dict):
        return data
    ((tag, content),) = data.items()
    if tag == "float":
        return float.fromhex(content)
    if tag == "torch":
        value = getattr(torch, content)
        if type(value) not in _NAMED:
            raise ValueError(f"not a constant of torch: {content}")
        return value
    if tag == "size":
        return read_size(content, symbols)
    items = [decode_value(item, symbols) for item in content]
    return tuple(items) if tag == "tuple" else items
