"""Which memory a Program's steps touch: its inputs and what it allocates, seen through all views.

A recorded graph holds addresses. Those in the arguments of our own kernels can be changed before a
replay; those that a library's kernel was given cannot. So for each piece of memory this says which
launches read or write it, and whether a library call does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flambeau_runtime.c_executor import keeps_memory
from flambeau_runtime.externs import refs_of
from flambeau_runtime.program import Allocate, Extern, Launch, Program, View


@dataclass
class Memory:
    """The memory of one input or of one allocation.

    `input` is the position of the input, None for an allocation. `launches` holds (number of the
    launch in the Program, position among its buffers), in order.
    """

    input: int | None = None
    launches: list[tuple[int, int]] = field(default_factory=list)
    in_library: bool = False

    @property
    def used(self) -> bool:
        """Whether any step touches it."""
        return self.in_library or bool(self.launches)


def memory_of_tensors(program: Program) -> dict[str, Memory]:
    """The memory behind each tensor of the Program, by the tensor's name."""
    tensors = {tensor.name: tensor for tensor in program.tensors}
    memory = {
        name: Memory(position) for position, name in enumerate(program.inputs) if name in tensors
    }
    launches = 0
    for step in program.steps:
        if isinstance(step, Launch):
            for position, name in enumerate(step.buffers):
                memory[name].launches.append((launches, position))
            launches += 1
        elif isinstance(step, View):
            memory[step.name] = memory[step.base]
            if tensors[step.name].dtype != tensors[step.base].dtype:
                memory[step.base].in_library = True  # made by a call of ATen
        elif isinstance(step, Allocate):
            old = step.reuse
            same = old is not None and keeps_memory(tensors[step.name], tensors[old])
            memory[step.name] = memory[old] if same and old is not None else Memory()
        elif isinstance(step, Extern):
            given = [*refs_of((step.args, step.kwargs)), *(name for _, name in step.out)]
            for name in given:
                memory[name].in_library = True
            for name in filter(None, step.outputs):
                memory[name] = Memory(in_library=True)
    return memory
