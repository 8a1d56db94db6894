"""What a Program runs: each kernel with its source, the user's lines, the bytes that it touches
and, where it was measured, its share of the memory's bandwidth; then the calls of ATen.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from flambeau.explanation import count_text
from flambeau.report_page.formats import (
    bytes_text,
    places,
    seconds_text,
    short_place,
)
from flambeau.report_page.graph_picture import hues
from flambeau.report_page.highlight import code_block
from flambeau.report_page.html import Html, details, element, join, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flambeau.explanation import ExternExplanation
    from flambeau.kernel_times import KernelTime
    from flambeau.program_explanation import KernelExplanation, ProgramExplanation


def kernel_list(program: ProgramExplanation, times: Mapping[str, KernelTime], prefix: str) -> Html:
    """One line a kernel, which opens to everything about it."""
    colours = hues(program)
    rows = [
        _kernel(kernel, number, colours[kernel.name], times.get(kernel.name), prefix)
        for number, kernel in enumerate(program.kernels)
    ]
    if not rows:
        return element("p", "No kernels: the program only calls ATen.", class_="note")
    return element("div", rows, class_="kernels")


def _kernel(
    kernel: KernelExplanation, number: int, hue: int, time: KernelTime | None, prefix: str
) -> Html:
    facts = [
        element("span", element("i", class_="swatch", style=f"--hue:{hue}"), class_="hide"),
        element("code", kernel.name, class_="name"),
        element("span", f"{kernel.launches}×", class_="fact", title="launches in a call"),
        element("span", bytes_text(kernel.bytes_touched), class_="fact", title="bytes a launch"),
        _bandwidth(time),
        element("span", ", ".join(map(short_place, kernel.lines[:3])), class_="where"),
    ]
    return details(
        facts,
        element("h5", "Your lines"),
        places(kernel.lines) if kernel.lines else element("p", "None is known.", class_="note"),
        element("h5", "Tensors"),
        element("ul", [element("li", element("code", text)) for text in kernel.tensors]),
        element("p", _traffic(kernel, time), class_="note"),
        element("h5", "Source"),
        code_block(kernel.source, kernel.language),
        id=f"{prefix}k{number}",
        class_="kernel",
    )


def _traffic(kernel: KernelExplanation, time: KernelTime | None) -> str:
    text = f"{kernel.bytes_touched:,} bytes a launch: each tensor once, twice if it is updated."
    if time is None:
        return f"{text} Not measured: to_html(..., measure=True) measures."
    return (
        f"{text} Measured alone, on random inputs: {seconds_text(time.seconds)}, "
        f"{bytes_text(time.bandwidth)} a second; a copy of memory reaches "
        f"{bytes_text(time.peak)} a second."
    )


def _bandwidth(time: KernelTime | None) -> Html | None:
    if time is None:
        return None
    share = time.bandwidth / time.peak
    text = "under 1%" if share < 0.01 else f"{share:.0%}"
    if share > 1:
        text += ", from caches"
    bar = element("i", element("b", style=f"width:{min(share, 1):.0%}"), class_="meter")
    title = "share of the bandwidth that a copy of memory reaches"
    return element("span", seconds_text(time.seconds), bar, text, class_="fact", title=title)


def call_table(
    externs: tuple[ExternExplanation, ...], programs: tuple[ProgramExplanation, ...]
) -> Html:
    """The calls of ATen, why no kernel computes them, and where the program makes them."""
    lines: dict[str, dict[str, None]] = {}
    touched: Counter[str] = Counter()
    for program in programs:
        for step in program.steps:
            if step.runs:
                lines.setdefault(step.runs, {}).update(dict.fromkeys(step.lines))
                touched[step.runs] += step.bytes_touched
    rows = [
        (
            element("code", extern.operator),
            f"{extern.calls}",
            bytes_text(touched[extern.operator]),
            extern.reason,
            ", ".join(map(short_place, lines.get(extern.operator, ()))),
        )
        for extern in externs
    ]
    if not rows:
        return join()
    total = sum(extern.calls for extern in externs)
    return join(
        element("h4", f"{count_text(total, 'call')} of ATen"),
        table(("operator", "calls", "bytes", "why no kernel computes it", "your lines"), rows),
    )
