"""ONNX Runtime: the graph as an ONNX model, by torch.onnx and onnxscript; on a CPU, and on a GPU
where the runtime has its CUDA provider (onnxruntime-gpu).

The session reads inputs and writes results where they lie.
"""

from __future__ import annotations

import contextlib
import io
import logging
from typing import TYPE_CHECKING, Any

import onnx
import onnxruntime
import torch

from flambeau.engines.refusals import EngineRefuses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DYNAMIC = True
CHECKS_INDICES = True

_TYPES = {
    torch.float32: onnx.TensorProto.FLOAT,
    torch.float64: onnx.TensorProto.DOUBLE,
    torch.float16: onnx.TensorProto.FLOAT16,
    torch.bfloat16: onnx.TensorProto.BFLOAT16,
    torch.int64: onnx.TensorProto.INT64,
    torch.int32: onnx.TensorProto.INT32,
    torch.int16: onnx.TensorProto.INT16,
    torch.int8: onnx.TensorProto.INT8,
    torch.uint8: onnx.TensorProto.UINT8,
    torch.bool: onnx.TensorProto.BOOL,
}
"""torch's dtypes in ONNX."""


def build(
    program: torch.export.ExportedProgram, examples: tuple[torch.Tensor, ...]
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]:
    """A session that runs the program."""
    device = examples[0].device if examples else torch.device("cpu")
    for example in examples:
        if example.dtype not in _TYPES:
            raise EngineRefuses(f"ONNX Runtime takes no {example.dtype}")
    session = onnxruntime.InferenceSession(
        _model(program), _session_options(), providers=[_provider(device)]
    )
    read = {item.name for item in session.get_inputs()}
    inputs = [item.name for item in program.graph.find_nodes(op="placeholder")]
    if not read <= set(inputs):
        raise EngineRefuses(f"the ONNX model asks for {', '.join(sorted(read - set(inputs)))}")
    outputs = [item.name for item in session.get_outputs()]

    def run(tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        binding = session.io_binding()
        for name, tensor in zip(inputs, tensors, strict=True):
            if name in read:
                binding.bind_input(name, *_bound(tensor))
        for name, result in zip(outputs, results, strict=True):
            binding.bind_output(name, *_bound(result))
        if device.type == "cuda":  # the session has its own stream, which it waits for
            torch.cuda.current_stream(device).synchronize()
        session.run_with_iobinding(binding)

    return run


def _bound(tensor: torch.Tensor) -> tuple[Any, ...]:
    device = tensor.device
    shape = list(tensor.shape)
    return device.type, device.index or 0, _TYPES[tensor.dtype], shape, tensor.data_ptr()


def _model(program: torch.export.ExportedProgram) -> bytes:
    with _quiet():
        exported = torch.onnx.export(program, dynamo=True, verbose=False)
    assert exported is not None
    file = io.BytesIO()
    onnx.save(exported.model_proto, file)
    return file.getvalue()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without onnxscript's log of its passes."""
    logger = logging.getLogger("onnxscript")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _session_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    return options


def _provider(device: torch.device) -> Any:
    if device.type == "cpu":
        return "CPUExecutionProvider"
    if device.type != "cuda":
        raise EngineRefuses(f"ONNX Runtime is not asked for devices of type {device.type}")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise EngineRefuses(
            "this ONNX Runtime has no CUDA provider: pip install onnxruntime-gpu in its place"
        )
    return "CUDAExecutionProvider", {"device_id": device.index or 0}
