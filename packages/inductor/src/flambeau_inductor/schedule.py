"""A schedule: loop nests and extern calls in groups, in the order they run, and their memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flambeau_inductor.nodes import TensorRef

if TYPE_CHECKING:
    from flambeau_inductor.nodes import Lowered
    from flambeau_inductor.scheduler.fusion import Refusal
    from flambeau_inductor.scheduler.groups import Group
    from flambeau_inductor.scheduler.memory import MemoryPlan


@dataclass(eq=False, slots=True)
class Schedule:
    """`emit_program`'s input. `last_use`: buffer -> last step; `kept`: buffers of outputs."""

    lowered: Lowered
    groups: list[Group]
    memory: MemoryPlan
    refusals: list[Refusal]
    last_use: dict[str, int] = field(init=False)
    kept: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.last_use = {}
        for step, group in enumerate(self.groups):
            for node in group.nodes:
                self.last_use.update(dict.fromkeys(node.reads | node.writes, step))
        self.kept = {out.buffer for out in self.lowered.outputs if isinstance(out, TensorRef)}

    def __str__(self) -> str:
        return "\n".join(f"{step}: {group.label}" for step, group in enumerate(self.groups))
