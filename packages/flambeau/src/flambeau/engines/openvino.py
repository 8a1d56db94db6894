"""OpenVINO, on a CPU: the graph through its frontend for ExportedPrograms.

Floats are computed in their own precision, which OpenVINO does not do unasked on machines with
matrix units for bfloat16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import openvino
import torch

from flambeau.engines.refusals import EngineRefuses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DYNAMIC = True
CHECKS_INDICES = False

_TYPES = {
    torch.float32: openvino.Type.f32,
    torch.float16: openvino.Type.f16,
    torch.bfloat16: openvino.Type.bf16,
    torch.int64: openvino.Type.i64,
    torch.int32: openvino.Type.i32,
    torch.bool: openvino.Type.boolean,
}
"""torch's dtypes in OpenVINO. Its plugin for CPUs computes float64 in float32, and integers of 8
and 16 bits saturate there.
"""
_OF_INDICES = frozenset({
    "embedding", "index_select", "gather", "index", "view", "_unsafe_view", "reshape", "expand",
    "unsqueeze", "squeeze", "slice", "select", "permute", "t", "transpose", "clone", "alias",
    "detach", "arange",
})  # fmt: skip
"""Operators that int64 values may meet: the plugin computes them in 32 bits, in which indices fit.
"""


def build(
    program: torch.export.ExportedProgram, examples: tuple[torch.Tensor, ...]
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]:
    """A compiled model that runs the program."""
    for example in examples:
        if example.device.type != "cpu":
            raise EngineRefuses(f"OpenVINO is asked for CPUs only, not {example.device}")
    _check_dtypes(program)
    shapes = [
        openvino.PartialShape(
            [size if isinstance(size, int) else -1 for size in node.meta["val"].shape]
        )
        for node in program.graph.find_nodes(op="placeholder")
    ]
    model = openvino.convert_model(program, input=shapes)
    compiled = openvino.Core().compile_model(
        model,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": "f32",
            "EXECUTION_MODE_HINT": "ACCURACY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        },
    )
    if len(compiled.inputs) != len(examples):
        raise EngineRefuses("OpenVINO's model has other inputs than the graph")

    def run(tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        request = compiled.create_infer_request()  # each call its own: calls may be concurrent
        for number, tensor in enumerate(tensors):
            request.set_input_tensor(number, _shared(tensor))
        request.infer()
        for number, result in enumerate(results):
            found = request.get_output_tensor(number)
            if tuple(found.shape) != tuple(result.shape) or found.element_type != _TYPES.get(
                result.dtype
            ):
                raise RuntimeError(
                    f"OpenVINO gives {found.element_type}{list(found.shape)} for {result.dtype}"
                    f"{list(result.shape)}"
                )
            found.copy_to(_shared(result))

    return run


def _check_dtypes(program: torch.export.ExportedProgram) -> None:
    """EngineRefuses if the program computes what the plugin computes in another dtype."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not node.users:
            continue  # of several results, those count that are read
        if value.dtype not in _TYPES:
            raise EngineRefuses(f"OpenVINO does not compute in {value.dtype}")
        if value.dtype is torch.int64:
            for call in (node, *node.users):
                name = getattr(call.target, "_opname", "")
                if call.op == "output" or (call.op == "call_function" and name not in _OF_INDICES):
                    raise EngineRefuses("OpenVINO computes int64 in 32 bits")


def _shared(tensor: torch.Tensor) -> openvino.Tensor:
    """The tensor's memory, seen by OpenVINO."""
    if tensor.dtype is torch.bfloat16:
        raw = tensor.view(torch.int16).numpy()
        return openvino.Tensor(raw, list(tensor.shape), openvino.Type.bf16)
    return openvino.Tensor(tensor.numpy(), shared_memory=True)
