"""XLA, by torch_xla: the graph is compiled for the inputs' XLA device; inputs on a CPU are copied
to torch_xla's default device, and results back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch_xla
from torch_xla._dynamo.dynamo_bridge import extract_compiled_graph

from flambeau.engines.refusals import EngineRefuses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DYNAMIC = False
CHECKS_INDICES = False


def build(
    program: torch.export.ExportedProgram, examples: tuple[torch.Tensor, ...]
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]:
    """An XLA executable that runs the program."""
    for example in examples:
        if example.device.type not in ("cpu", "xla"):
            raise EngineRefuses(
                f"torch_xla takes tensors on a CPU or an XLA device, not {example.device}"
            )
    device = torch_xla.device()
    compiled = extract_compiled_graph(
        program.module(check_guards=False), tuple(example.to(device) for example in examples)
    )

    def run(tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        found = compiled(*(tensor.to(device) for tensor in tensors))
        for result, computed in zip(results, found, strict=True):
            result.copy_(computed)

    return run
