"""`Explanation.to_html`: a page that is well formed, needs nothing else, and shows what explain
knows.
"""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import flambeau
from flambeau.kernel_times import alone_program, measure_kernels
from flambeau.program_explanation import explain_program, kernel_text
from flambeau.report import Span, report_of
from flambeau.report_page.html import VOID
from flambeau.report_page.layered_layout import GAP, layered_layout
from flambeau_runtime.tuning.table import Outcome, TuningTable

if TYPE_CHECKING:
    from pathlib import Path

    from flambeau.explain import Explanation


class Page(HTMLParser):
    """A page, read strictly: every element is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.outside: list[str] = []
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()
        assert not self.open
        self.text = "".join(self.words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        assert len(dict(attrs)) == len(attrs), f"an attribute of {tag} stands twice"
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            elif name == "href" and str(value).startswith("#"):
                self.links.append(str(value)[1:])
            elif name in ("href", "src", "srcset", "action", "data", "xlink:href"):
                self.outside.append(str(value))
            assert not name.startswith("on"), f"{tag} has a handler {name}"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(24), nn.Linear(24, 24)
        self.scale = "<script>alert(1)</script>"

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = x + self.linear(self.norm(x))[ids] * len(self.scale)
        if x.sum().item() > -1e9:
            x = x.tanh()
        return torch.softmax(x.erfinv(), -1)


NAME = "Block <i>&amp;"


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    compiled = flambeau.compile(Block(), name=NAME)
    for rows in (5, 7):
        out = compiled(torch.rand(rows, 24), torch.arange(rows))
        out.sum().backward()
    return flambeau.explain(compiled)


@pytest.fixture(scope="module")
def page(explanation: Explanation, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = explanation.to_html(tmp_path_factory.mktemp("page") / "report.html")
    return path.read_text(encoding="utf-8")


def test_it_is_well_formed_and_alone(page: str) -> None:
    parsed = Page(page)
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert parsed.links and set(parsed.links) <= set(parsed.ids)
    assert not parsed.outside
    assert not parsed.tags & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
        "b-script",
    }
    assert page.count("<script>") == 1
    assert not re.search(r"url\(|@import|https?:", page)


def test_what_the_program_says_is_text(page: str) -> None:
    assert NAME in Page(page).text
    assert "<script>alert" not in page


def test_it_shows_what_explain_knows(explanation: Explanation, page: str) -> None:
    text = Page(page).text
    assert len(explanation.graphs) > 2 and explanation.breaks and explanation.recompiles
    for graph in explanation.graphs:
        assert graph.programs
        for program in graph.programs:
            assert [kernel.name for kernel in program.kernels]
            for kernel in program.kernels:
                assert kernel.source in text and f"{kernel.bytes_touched:,} bytes a launch" in text
                assert all(tensor in text for tensor in kernel.tensors)
            for operation in program.operations:
                assert operation.tensor in text
        for extern in graph.externs:
            assert extern.operator in text and extern.reason in text
        assert all(guard.text in text for guard in graph.guards)
        assert graph.code in text
        for summary in graph.savings:
            assert all(tensor.name in text for tensor in summary.saved)
            assert all(f"{name} {count}×" in text for name, count in summary.recomputed)
    for reason in explanation.breaks:
        assert reason.cause in text and reason.hint in text
    for recompile in explanation.recompiles:
        for failure in recompile.failures:
            assert failure.expected in text and failure.found in text
    assert all(event.text in text for event in explanation.timeline)


def test_kernels_name_the_lines_of_forward_and_backward(explanation: Explanation) -> None:
    first = Block.forward.__code__.co_firstlineno
    for graph in explanation.graphs:
        programs = {program.name: program for program in graph.programs}
        if "backward" not in programs:
            continue
        for program in programs.values():
            for kernel in program.kernels:
                assert kernel.lines and kernel.computes
                for line in kernel.lines:
                    path, _, number = line.rpartition(":")
                    assert path == __file__ and first < int(number) <= first + 12


def test_each_operation_is_computed_by_a_step(explanation: Explanation) -> None:
    for graph in explanation.graphs:
        for program in graph.programs:
            names = {operation.name for operation in program.operations}
            for operation in program.operations:
                assert names.issuperset(operation.operands)
                if operation.step >= 0:
                    assert program.steps[operation.step].runs
            computed = {operation.step for operation in program.operations}
            assert computed >= {n for n, step in enumerate(program.steps) if step.runs}


def test_memory_and_bytes() -> None:
    compiled = flambeau.compile(lambda x: (x.sin() + 1) @ x, dynamic=True)
    compiled(torch.randn(32, 32))
    (program,) = flambeau.explain(compiled).graphs[0].programs
    square = 32 * 32 * 4
    assert set(program.sizes.values()) == {32}
    assert program.argument_bytes == square and program.peak_bytes == 3 * square
    (kernel,) = program.kernels
    assert kernel.bytes_touched == 2 * square
    assert [step.bytes_touched for step in program.steps if step.runs] == [2 * square, 3 * square]


def test_measured_kernels(tmp_path: Path) -> None:
    compiled = flambeau.compile(lambda x, i: x[i].exp().sum(-1))
    x, i = torch.randn(64, 32), torch.randint(0, 64, (50,))
    torch.testing.assert_close(compiled(x, i), x[i].exp().sum(-1))
    report = report_of(compiled)
    ((times),) = measure_kernels(report, report.runtime_options).values()
    (program,) = report.graphs[0].programs
    assert times.keys() == {kernel.name for kernel in program.kernels}
    for time in times.values():
        assert time.seconds > 0 and time.bandwidth > 0 and time.peak > 1e8
    alone = alone_program(program, program.steps[-1], {})
    assert alone.inputs == program.steps[-1].buffers
    path = flambeau.explain(compiled).to_html(tmp_path / "page.html", measure=True)
    assert "Measured alone, on random inputs" in Page(path.read_text()).text


def test_tables_of_measurements(tmp_path: Path) -> None:
    compiled = flambeau.compile(lambda x: x + 1)
    compiled(torch.ones(2))
    outcomes = (Outcome("library", 2.0), Outcome("64x<64>", 1.0), Outcome("slow", None, "wrong"))
    report_of(compiled).tables.append(TuningTable("mm(4x4)", outcomes, 1, 1.5, 2.5))
    explanation = flambeau.explain(compiled)
    text = Page(explanation.to_html(tmp_path / "page.html").read_text()).text
    assert "64x<64> chosen1.0 ms" in text and "library2.0 ms" in text
    assert "rejected: wrong" in text and "3 choices, built in 1.5 s, measured in 2.5 s" in text


def test_programs_without_a_graph_show_their_steps(tmp_path: Path) -> None:
    compiled = flambeau.compile(lambda x: (x @ x).sin())
    compiled(torch.randn(3, 3))
    graph = report_of(compiled).graphs[0]
    graph.functional.clear()  # as where the captured graph was read from the cache
    assert explain_program(graph.programs[0], None).operations == ()
    page = flambeau.explain(compiled).to_html(tmp_path / "page.html").read_text()
    assert "launches and calls" in page and "aten.mm.out" in Page(page).text


def test_a_kernel_is_cut_out_of_its_source() -> None:
    source = "prelude\n// kernel cpu\nvoid k_1(int a) {\n}\n// kernel cpu\nvoid k_11(int a) {\n}\n"
    assert kernel_text(source, "k_11") == "// kernel cpu\nvoid k_11(int a) {\n}"
    assert kernel_text("def f(): pass\n", "f") == "def f(): pass"


def test_the_layout_keeps_distances_and_layers() -> None:
    widths = [50.0, 120.0, 30.0, 80.0, 60.0, 60.0]
    edges = [(0, 2), (1, 2), (2, 3), (0, 4), (3, 4), (1, 5)]
    layout = layered_layout(widths, edges)
    for (start, end), route in zip(edges, layout.routes, strict=True):
        assert route[0] == layout.centers[start] and route[-1] == layout.centers[end]
        assert all(a[1] < b[1] for a, b in pairwise(route))
    for a in range(len(widths)):
        for b in range(a):
            (ax, ay), (bx, by) = layout.centers[a], layout.centers[b]
            assert ay != by or abs(ax - bx) >= (widths[a] + widths[b]) / 2 + GAP - 1e-6
        assert 0 <= layout.centers[a][0] <= layout.width


def test_in_a_browser(page: str, tmp_path: Path) -> None:
    """No error, nothing loaded, no sideways scrolling; pictures zoom, links open kernels."""
    playwright = pytest.importorskip("playwright.sync_api")
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        pytest.skip("there is no Chromium")
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for width in (1280, 400):
            tab = browser.new_page(viewport={"width": width, "height": 800})
            problems: list[str] = []
            tab.on("pageerror", lambda error, seen=problems: seen.append(str(error)))
            tab.on("console", lambda line, seen=problems: seen.append(line.text))
            tab.on("request", lambda request, seen=problems: seen.append(request.url))
            tab.goto(file.as_uri())
            assert problems == [file.as_uri()]
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            before = tab.get_attribute(".picture svg", "viewBox")
            tab.click(".picture [data-zoom=in]")
            assert tab.get_attribute(".picture svg", "viewBox") != before
            theme = tab.evaluate("document.documentElement.dataset.theme")
            tab.click("#theme")
            assert tab.evaluate("document.documentElement.dataset.theme") != theme
            tab.click(".legend a")
            assert tab.locator(".kernel[open] pre").first.is_visible()
            tab.close()
        browser.close()


def test_stages_of_other_compilers_have_lanes(tmp_path: Path) -> None:
    compiled = flambeau.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(2))
    report_of(compiled).graphs[0].seconds.spans.append(Span("engine", 0.0, 1.0))
    path = flambeau.explain(compiled).to_html(tmp_path / "page.html")
    assert "engine1.00 s" in Page(path.read_text()).text
