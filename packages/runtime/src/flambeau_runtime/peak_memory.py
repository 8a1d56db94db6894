"""The memory that a Program holds, step by step, known without running it.

    program(x: float32[256]) {                     live bytes: 1024, the input's
      a = allocate float32[256]                    2048
      launch tanh(x, a)                            2048
      b = extern aten.mul.Tensor(a, 2.0)           3072
      free a                                       2048
      return (b,)
    }

Temporary memory of library calls is not known, nor what an allocator adds.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from flambeau_runtime.arena import byte_size
from flambeau_runtime.c_executor import keeps_memory
from flambeau_runtime.dims import evaluate
from flambeau_runtime.program import Allocate, Extern, Free, Program, View

if TYPE_CHECKING:
    from collections.abc import Mapping


def live_bytes(program: Program, sizes: Mapping[str, int] | None = None) -> list[int]:
    """The bytes that are alive before the first step, and during each step, inputs included.

    `sizes` gives the value of each symbol. Memory is alive while a tensor or a view names it; an
    input that is never freed is alive to the end.
    """
    tensors = {tensor.name: tensor for tensor in program.tensors}
    values = dict(sizes or {})

    def size(name: str) -> int:
        return int(evaluate(byte_size(tensors[name]), values))

    memory = {name: name for name in program.inputs if name in tensors}  # tensor -> who made it
    holders = Counter(memory.values())
    alive = sum(size(name) for name in memory)
    result = [alive]

    def make(name: str) -> None:
        nonlocal alive
        memory[name] = name
        holders[name] += 1
        alive += size(name)

    def drop(name: str) -> None:
        nonlocal alive
        maker = memory.pop(name, None)
        if maker is not None:
            holders[maker] -= 1
            alive -= 0 if holders[maker] else size(maker)

    for step in program.steps:
        if isinstance(step, Allocate):
            if step.reuse is not None and keeps_memory(tensors[step.name], tensors[step.reuse]):
                memory[step.name] = memory.pop(step.reuse)
            else:
                if step.reuse is not None:
                    drop(step.reuse)
                make(step.name)
        elif isinstance(step, View):
            memory[step.name] = memory[step.base]
            holders[memory[step.name]] += 1
        elif isinstance(step, Extern):
            for name in filter(None, step.outputs):
                make(name)
        elif isinstance(step, Free):
            drop(step.name)
        result.append(alive)
    return result


def planned_peak(program: Program, sizes: Mapping[str, int] | None = None) -> int:
    """The most bytes that a call of the Program holds at a time, its inputs included."""
    return max(live_bytes(program, sizes))


def fixed_peak(program: Program) -> int | None:
    """`planned_peak` of a Program whose sizes are all fixed; None of others."""
    sizes = (size for tensor in program.tensors for size in (*tensor.shape, *tensor.stride))
    return planned_peak(program) if all(isinstance(size, int) for size in sizes) else None
