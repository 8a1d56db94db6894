"""Apache TVM, on a CPU: the graph through Relax's frontend for ExportedPrograms, built by LLVM for
this machine, one program for each combination of sizes.

No schedules are searched: `tvm.relax`'s default pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import tvm
from tvm.relax.frontend.torch import from_exported_program

from flambeau.engines.refusals import EngineRefuses
from flambeau_prims.fork_safety import fork_safe_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DYNAMIC = False
CHECKS_INDICES = False


def build(
    program: torch.export.ExportedProgram, examples: tuple[torch.Tensor, ...]
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]:
    """A virtual machine that runs the program."""
    for example in examples:
        if example.device.type != "cpu":
            raise EngineRefuses(f"TVM is asked for CPUs only, not {example.device}")
    module = from_exported_program(program)
    machine = tvm.relax.VirtualMachine(tvm.compile(module, _target()), tvm.cpu())
    lock = fork_safe_lock()  # a virtual machine runs one call at a time

    def run(tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        with lock:
            found = machine["main"](*(tvm.runtime.from_dlpack(tensor) for tensor in tensors))
        for result, value in zip(results, found, strict=True):
            computed = torch.from_dlpack(value)
            if computed.dtype is not result.dtype or computed.shape != result.shape:
                raise RuntimeError(
                    f"TVM gives {computed.dtype}{list(computed.shape)} for {result.dtype}"
                    f"{list(result.shape)}"
                )
            result.copy_(computed)

    return run


def _target() -> tvm.target.Target:
    return tvm.target.Target("llvm")
