"""The memory that a Program plans to hold, step by step: a line over the steps of a call."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flambeau.report_page.formats import bytes_text
from flambeau.report_page.html import Html, element, join

if TYPE_CHECKING:
    from flambeau.program_explanation import ProgramExplanation

LINES = 4
"""About so many lines of the scale."""


def memory_plot(program: ProgramExplanation) -> Html:
    """The plot; the bytes of arguments are a band below."""
    peak = program.peak_bytes
    if not peak or not program.steps:
        return element("p", "The sizes of this program are not known.", class_="note")
    top, marks = _scale(peak)
    count = len(program.steps)
    points = [program.argument_bytes, *(step.live_bytes for step in program.steps)]

    def y(size: float) -> str:
        return f"{100 - 100 * size / top:.2f}"

    path = f"M0 {y(points[0])}"
    for number, size in enumerate(points[1:]):
        path += f"V{y(size)}H{number + 1}"
    highest = max(range(count), key=lambda number: program.steps[number].live_bytes)
    hovers = [
        element(
            "rect",
            element("title", f"{step.text}\n{bytes_text(step.live_bytes)} alive"),
            x=number, y=0, width=1, height=100, class_="hover",
        )
        for number, step in enumerate(program.steps)
    ]  # fmt: skip
    picture = element(
        "svg",
        [element("line", x1=0, x2=count, y1=y(mark), y2=y(mark), class_="grid") for mark in marks],
        element("path", d=f"{path}V100H0Z", class_="area"),
        element(
            "rect", x=0, y=y(program.argument_bytes), width=count,
            height=f"{100 * program.argument_bytes / top:.2f}", class_="arguments",
        ),
        element("path", d=path, class_="line"),
        hovers,
        viewBox=f"0 0 {count} 100",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"planned memory of {program.name}: at most {bytes_text(peak)}",
    )  # fmt: skip
    labels = [
        element("span", bytes_text(mark), style=f"top:{100 - 100 * mark / top:.2f}%")
        for mark in marks
    ]
    sizes = ", ".join(f"{name} = {value}" for name, value in program.sizes.items())
    return join(
        element("div", element("div", labels, class_="scale"), picture, class_="plot"),
        element(
            "p",
            f"{count} steps. Peak {bytes_text(peak)} at “{program.steps[highest].text[:90]}”; "
            f"arguments {bytes_text(program.argument_bytes)} (the band).",
            f" Sizes: {sizes}." if sizes else None,
            " Temporary memory of libraries is not known.",
            class_="note",
        ),
    )


def _scale(peak: int) -> tuple[float, list[float]]:
    """The top of the scale, and where lines are drawn: round numbers of a binary unit."""
    unit = 1024 ** int(math.log(peak, 1024))
    raw = peak / unit / LINES
    power = 10 ** math.floor(math.log10(raw))
    step = unit * next(power * k for k in (1, 2, 2.5, 5, 10) if power * k >= raw)
    marks = [step * number for number in range(math.ceil(peak / step) + 1)]
    return marks[-1] or step, marks
