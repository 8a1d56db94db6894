"""TensorRT, on NVIDIA's GPUs: the graph by torch_tensorrt, which runs operators that TensorRT does
not have by PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch_tensorrt

from flambeau.engines.refusals import EngineRefuses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DYNAMIC = False
CHECKS_INDICES = False


def build(
    program: torch.export.ExportedProgram, examples: tuple[torch.Tensor, ...]
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]:
    """A module of TensorRT engines that runs the program."""
    for example in examples:
        if example.device.type != "cuda":
            raise EngineRefuses(
                f"TensorRT runs on NVIDIA's GPUs, and an input is on {example.device}"
            )
    module = torch_tensorrt.dynamo.compile(
        program, arg_inputs=list(examples), use_explicit_typing=True, min_block_size=1
    )

    def run(tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        for result, computed in zip(results, module(*tensors), strict=True):
            result.copy_(computed)

    return run
