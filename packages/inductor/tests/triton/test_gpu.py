"""Every kernel, built and run on a GPU and compared with the reference evaluator."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)


from cases import Case, all_cases, difference

from flambeau_inductor.codegen.triton.backend import TritonBackend
from flambeau_inductor.ir import ScheduledKernel
from flambeau_inductor.options import InductorOptions
from flambeau_runtime import RuntimeOptions, load
from flambeau_runtime.program import Allocate, Program, Step, Tensor


@pytest.mark.parametrize("case", list(all_cases()), ids=lambda case: case.name)
def test_equals_the_reference(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    names = tuple(f"t{index}" for index in range(len(case.buffers)))
    scheduled = ScheduledKernel(case.kernel, names, case.ints, "cuda:0", case.tiling)
    emitted = TritonBackend().emit([scheduled], InductorOptions())
    steps: tuple[Step, ...] = emitted.launches
    scratch: tuple[Tensor, ...] = ()
    if "scratch" in emitted.kernels[0].meta:
        (launch,) = emitted.launches
        size = launch.grid[0] * emitted.kernels[0].meta["scratch"]
        scratch = (Tensor("scratch", (size,), (1,), "uint8", "cuda:0"),)
        steps = (Allocate("scratch"), replace(launch, buffers=(*names, "scratch")))
    program = Program(
        inputs=names,
        tensors=tuple(
            Tensor(
                name,
                tuple(b.shape),
                tuple(b.stride()),
                str(b.dtype).removeprefix("torch."),
                "cuda:0",
            )
            for name, b in zip(names, case.buffers, strict=True)
        )
        + scratch,
        symbols=(),
        sources=emitted.sources,
        kernels=emitted.kernels,
        steps=steps,
        outputs=names,
        mutated=names[-1:],
    )
    cache = tmp_path_factory.getbasetemp() / "cache"
    buffers = [buffer.clone().cuda() for buffer in case.buffers]
    load(program, RuntimeOptions(cache_dir=cache))(*buffers)
    wrong = difference(case, [buffer.cpu() for buffer in buffers])
    assert wrong is None, wrong
