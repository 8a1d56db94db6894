"""Events of graphs that are launched kernel by kernel though the options ask for CUDA graphs.

model.py:12: launched kernel by kernel: aten.nonzero.default waits for the device ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flambeau_prims.gpu_draws import reserve_random
from flambeau_prims.graph import Value
from flambeau_runtime.graph_launch.eligibility import ON_THE_CPU

if TYPE_CHECKING:
    from torch import fx

    from flambeau.report import Report
    from flambeau_prims.graph import Graph, Node


@dataclass(frozen=True)
class LaunchLines:
    """Lines of the user's program that may keep a Program from being launched as a CUDA graph."""

    of_operators: dict[str, str]
    """The first line that calls an operator, by its name without the overload."""
    on_cpu: str
    """The first line that touches a tensor of the CPU, or ""."""
    foreign: str
    """The first line that calls an operator of the program's own, or ""."""

    @classmethod
    def of(cls, graph: Graph) -> LaunchLines:
        """Those of a functional graph."""
        lines = [(str(node.op), node.where) for node in graph.nodes if node.where]
        states = {out for node in graph.nodes if node.op is reserve_random for out in node.outputs}
        on_cpu = (node.where for node in graph.nodes if node.where and _on_cpu(node, states))
        of_operators: dict[str, str] = {}
        for operator, where in lines:
            of_operators.setdefault(_without_out(operator), str(where))
        foreign = next((str(where) for op, where in lines if not _is_ours(op)), "")
        return cls(of_operators, str(next(on_cpu, "")), foreign)


class PlainLaunches:
    """Notes why a Program is launched plainly, with the user's line."""

    def __init__(self, report: Report, lines: LaunchLines) -> None:
        self.report = report
        self._lines = lines

    def __call__(self, reason: str) -> None:
        where = self._line(reason)
        place = f"{where}: " if where else ""
        text = f"{place}launched kernel by kernel, not as a CUDA graph: {reason}"
        self.report.note_once("plain_launch", text)

    def _line(self, reason: str) -> str:
        """The user's line that is why, as far as that is known."""
        if reason == ON_THE_CPU:
            return self._lines.on_cpu
        operator = _without_out(getattr(reason, "op", ""))
        return self._lines.of_operators.get(operator, "") or self._lines.foreign


def note_cuts(report: Report, gm: fx.GraphModule, calls: list[fx.Node]) -> None:
    """Note the calls that run between the CUDA graphs of a graph that was cut there."""
    if not any(_is_gpu(node.meta.get("spec")) for node in gm.graph.nodes):
        return
    for node in calls:
        where = node.meta.get("where", "")
        place = f"{where}: " if where else ""
        name = getattr(node.target, "__name__", str(node.target))
        text = f"{place}{name} runs between CUDA graphs: what follows depends on its data"
        report.note_once("plain_launch", text)


def note_cpu(report: Report, graph: Graph, *, warn: bool) -> None:
    """Note that a graph is on a CPU, where there are no CUDA graphs, though the options ask for
    them; with a warning where they are all that was asked for.
    """
    outputs = [out for node in graph.nodes for out in node.outputs if out is not None]
    inputs = [value for value in graph.inputs if isinstance(value, Value)]
    values = [*inputs, *outputs]
    if not values or any(_is_gpu(value.spec) for value in values):
        return
    where = next((str(node.where) for node in graph.nodes if node.where), "")
    place = f"{where}: " if where else ""
    text = (
        f"{place}launched without CUDA graphs: {values[0].name} is on the {values[0].spec.device}"
    )
    report.note_once("plain_launch" if warn else "cpu_launch", text)


def _on_cpu(node: Node, states: set[Value | None]) -> bool:
    """Whether a call touches a tensor of the CPU, but for states of generators and attention's idle
    seeds, which are no reason.
    """
    if "attention" in str(node.op):
        return False
    values = {*node.operands(), *node.outputs} - states - {None}
    return any(value is not None and value.spec.device.type == "cpu" for value in values)


def _is_ours(operator: str) -> bool:
    return operator.startswith(("aten.", "prims.", "flambeau."))


def _without_out(operator: str) -> str:
    """The operator without its overload: a call may become its out= variant."""
    return ".".join(operator.split(".")[:2])


def _is_gpu(spec: Any) -> bool:
    if isinstance(spec, (list, tuple)):
        return any(map(_is_gpu, spec))
    device = getattr(spec, "device", None)
    return device is not None and device.type == "cuda"
