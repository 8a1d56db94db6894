"""The graph that a Program was compiled from, as SVG: each operation in the colour of the kernel
that computes it. Where that graph is large or not known, the Program's launches and calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from flambeau.report_page.formats import bytes_text, short_place
from flambeau.report_page.html import Html, element, join
from flambeau.report_page.layered_layout import layered_layout

if TYPE_CHECKING:
    from flambeau.program_explanation import ProgramExplanation

MOST_NODES = 500
LETTER = 7.3
"""The width of a letter in a node."""

NODE_HEIGHT = 42.0


@dataclass
class _Node:
    title: str
    note: str
    tooltip: str
    step: int
    is_input: bool = False


def hue_of(number: int) -> int:
    """The colour of a kernel: a hue; neighbours in number differ much."""
    return round(number * 137.508 + 205) % 360


def hues(program: ProgramExplanation) -> dict[str, int]:
    """The hue of each kernel of a Program, by name; calls of ATen have none."""
    return {kernel.name: hue_of(number) for number, kernel in enumerate(program.kernels)}


def graph_picture(program: ProgramExplanation, prefix: str) -> Html:
    """The picture in a frame that can be moved and zoomed. Nodes link to `prefix`-named kernels."""
    nodes, edges = _operations(program)
    what = "operations"
    if not nodes or len(nodes) > MOST_NODES:
        nodes, edges = _steps(program)
        what = "launches and calls"
    left_out = max(0, len(nodes) - MOST_NODES)
    nodes = nodes[:MOST_NODES]
    edges = [(a, b) for a, b in edges if b < MOST_NODES]
    if not nodes:
        return element("p", "This program runs nothing.", class_="note")
    widths = [max(len(node.title), len(node.note), 6) * LETTER + 22 for node in nodes]
    layout = layered_layout(widths, edges)
    colours = hues(program)
    paths = [
        element("path", d=_curve(route), class_="edge", data_from=start, data_to=end)
        for (start, end), route in zip(edges, layout.routes, strict=True)
    ]
    boxes = [
        _box(node, number, center, width, program, colours, prefix)
        for number, (node, center, width) in enumerate(
            zip(nodes, layout.centers, widths, strict=True)
        )
    ]
    picture = element(
        "svg",
        element("g", paths),
        element("g", boxes),
        viewBox=f"0 0 {layout.width:.0f} {layout.height:.0f}",
        width=f"{layout.width:.0f}",
        height=f"{layout.height:.0f}",
        role="img",
        aria_label=f"{len(nodes)} {what} of {program.name}",
    )
    buttons = [
        element("button", sign, type="button", data_zoom=name, title=title, aria_label=title)
        for sign, name, title in (
            ("+", "in", "zoom in"),
            ("−", "out", "zoom out"),
            ("⤢", "fit", "fit"),
        )
    ]
    note = f"The first {MOST_NODES} of {MOST_NODES + left_out} {what}." if left_out else None
    return join(
        element(
            "div", picture, element("div", buttons, class_="zoom"), class_="picture", tabindex=0
        ),
        note and element("p", note, class_="note"),
        _legend(program, colours, prefix),
    )


def _operations(program: ProgramExplanation) -> tuple[list[_Node], list[tuple[int, int]]]:
    """Operations that a step computes, or that lie between such; inputs that they read."""
    numbers: dict[str, int] = {}
    nodes: list[_Node] = []
    edges: list[tuple[int, int]] = []
    read = {name for operation in program.operations for name in operation.operands}
    for operation in program.operations:
        if operation.operator == "input" and operation.name not in read:
            continue
        runs = program.steps[operation.step].runs if operation.step >= 0 else "a view"
        tooltip = f"{operation.name} = {operation.operator}: {operation.tensor}"
        if operation.operator != "input":
            tooltip += f"\ncomputed by {runs}" if operation.step >= 0 else "\nno kernel: a view"
        if operation.line:
            tooltip += f"\n{operation.line}"
        numbers[operation.name] = len(nodes)
        edges += [(numbers[name], len(nodes)) for name in operation.operands if name in numbers]
        title = operation.name if operation.operator == "input" else operation.operator
        nodes.append(
            _Node(title, operation.tensor, tooltip, operation.step, operation.operator == "input")
        )
    return nodes, edges


def _steps(program: ProgramExplanation) -> tuple[list[_Node], list[tuple[int, int]]]:
    """Launches and calls in order, each after those before it whose tensors it takes."""
    nodes: list[_Node] = []
    edges: list[tuple[int, int]] = []
    last: dict[str, int] = {}
    for number, step in enumerate(program.steps):
        for new, old in step.renames:
            if old in last:
                last[new] = last[old]
        if not step.runs:
            continue
        edges += [
            (before, len(nodes)) for before in sorted({last[n] for n in step.names if n in last})
        ]
        last.update(dict.fromkeys(step.names, len(nodes)))
        places = ", ".join(map(short_place, step.lines[:2]))
        nodes.append(_Node(step.runs, places or bytes_text(step.bytes_touched), step.text, number))
    return nodes, edges


def _box(
    node: _Node, number: int, center: tuple[float, float], width: float,
    program: ProgramExplanation, colours: dict[str, int], prefix: str,
) -> Html:  # fmt: skip
    runs = program.steps[node.step].runs if node.step >= 0 else ""
    hue = colours.get(runs)
    x, y = center[0] - width / 2, center[1] - NODE_HEIGHT / 2
    what = "input" if node.is_input else "kernel" if hue is not None else "call" if runs else "view"
    drawn = element(
        "g",
        element("title", node.tooltip),
        element("rect", width=f"{width:.1f}", height=NODE_HEIGHT, rx=8),
        element("text", node.title, x=f"{width / 2:.1f}", y=17),
        element("text", node.note, x=f"{width / 2:.1f}", y=33, class_="small"),
        transform=f"translate({x:.1f} {y:.1f})",
        class_=f"node {what}",
        style=None if hue is None else f"--hue:{hue}",
        data_node=number,
        data_runs=runs or None,
    )
    if hue is None:
        return drawn
    return element("a", drawn, href=f"#{prefix}k{list(colours).index(runs)}")


def _legend(program: ProgramExplanation, colours: dict[str, int], prefix: str) -> Html:
    items = [
        element(
            "a", element("i", class_="swatch", style=f"--hue:{hue}"), name,
            href=f"#{prefix}k{number}",
        )
        for number, (name, hue) in enumerate(colours.items())
    ]  # fmt: skip
    if any(step.runs and step.runs not in colours for step in program.steps):
        items.append(element("span", element("i", class_="swatch call"), "call of ATen"))
    if program.operations:
        items.append(element("span", element("i", class_="swatch view"), "view, no kernel"))
    return element("p", items, class_="legend")


def _curve(route: list[tuple[float, float]]) -> str:
    """From the lower side of the first node to the upper side of the last, through the points."""
    points = list(route)
    points[0] = (points[0][0], points[0][1] + NODE_HEIGHT / 2)
    points[-1] = (points[-1][0], points[-1][1] - NODE_HEIGHT / 2)
    text = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        text += f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return text
