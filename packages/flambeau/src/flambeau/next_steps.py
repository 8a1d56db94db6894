"""What a user can do about what `explain` knows: the last lines of its text, and the first of its
page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flambeau.explanation import ExplanationData
    from flambeau_capture.events import GuardFailure

MOST_STEPS = 5


def next_steps(explanation: ExplanationData) -> tuple[str, ...]:
    """The most useful first; always at least one."""
    steps: dict[str, None] = {}
    for graph in explanation.graphs:
        if (fallback := graph.fallback) is not None:
            hint = f": {fallback.hint}" if fallback.hint else ""
            steps[f"Have the graph compiled that runs eagerly, for {fallback.text}{hint}."] = None
    for reason in explanation.breaks:
        hint = f": {reason.hint}" if reason.hint else ""
        steps[f"Remove the graph break at {reason.where}{hint}."] = None
    for recompile in explanation.recompiles:
        steps |= dict.fromkeys(map(_of_failure, recompile.failures))
    for event in explanation.events:
        if event.startswith("plain_launch: "):
            steps[
                f"Have it launched as one CUDA graph: {event.removeprefix('plain_launch: ')}."
            ] = None
    for graph in explanation.graphs:
        for text in graph.specialises:
            steps[f"Expect a recompile when this size changes: {text}."] = None
    steps = {f"{step.rstrip('. ')}.": None for step in steps}
    if len(steps) > MOST_STEPS:
        rest = len(steps) - MOST_STEPS
        return (*list(steps)[:MOST_STEPS], f"And {rest} more of this kind.")
    if not explanation.graphs:
        return ("Call it, and explain it again: nothing has been compiled yet.",)
    if not steps:
        measured = 'measure its kernels with .to_html("report.html", measure=True)'
        return (f"Nothing needs to be done. To see where the time goes, {measured}.",)
    return tuple(steps)


def _of_failure(failure: GuardFailure) -> str:
    """What would have avoided the recompile."""
    where = failure.source or "a value"
    if failure.kind == "TENSOR" and "shape" in failure.text:
        return (
            f"Mark the sizes of {where} that change with mark_dynamic, or compile with "
            "dynamic=True: the first entry then serves all sizes."
        )
    if failure.kind == "ASSUMPTION":
        return f"Write the branch on data at {where} with torch.where or torch.cond."
    return (
        f"Keep {where} the same between calls, or pass it as a tensor: its value is part of what "
        "is compiled."
    )
