"""The statements of one element of a row, between what is read from rows of scratch memory and what
is stored there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flambeau_inductor.codegen.cpp.cpp_types import value_type
from flambeau_inductor.codegen.cpp.sorts import collect, fetch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_inductor.codegen.cpp.writer import LoopWriter
    from flambeau_inductor.ir import Statement
    from flambeau_inductor.scheduler.phases import Phase


def write_element(writer: LoopWriter, phase: Phase, inside: Sequence[Statement]) -> None:
    """One element of a phase's loop."""
    position = writer.position()
    for sort in phase.sorted:
        fetch(writer, sort)
    for name in phase.fetches:
        dtype = writer.dtypes[name]
        test = " != 0" if dtype == torch.bool else ""
        writer.line(f"const {value_type(dtype)} {name} = keep_{name}[{position}]{test};")
    fetched = set(phase.fetches)
    writer.statements(s for s in inside if getattr(s, "name", None) not in fetched)
    for name in phase.keeps:
        writer.line(f"keep_{name}[{position}] = {name};")
    collect(writer, phase)
