"""The documentation site's pages and pictures, as far as they need no mkdocs."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from flambeau_autograd import pipeline as autograd_pipeline
from flambeau_inductor import pipeline as inductor_pipeline
from tools.checks import pictures
from tools.checks.command import PACKAGES, ROOT, CheckFailed
from tools.site import pages, reference

if TYPE_CHECKING:
    from pathlib import Path


def texts(svg: str) -> list[str]:
    """The texts of a picture, in their order."""
    return [node.text or "" for node in ElementTree.fromstring(svg).iter() if "text" in node.tag]


def test_links_lead_to_pages_or_to_the_repository() -> None:
    assert pages.translate_links("[a](../packages/capture/README.md#x)", "api.md") == (
        "[a](packages/capture.md#x)"
    )
    assert pages.translate_links("[a](../../docs/numpy.md)", "packages/capture.md") == (
        "[a](../numpy.md)"
    )
    assert pages.translate_links("[a](notebooks/graphs.py)", "packages_alone.md") == (
        "[a](notebooks/graphs.md)"
    )
    assert pages.translate_links("[a](../tools/bench)", "api.md") == (
        f"[a]({pages.REPOSITORY}/tools/bench)"
    )
    assert pages.translate_links("[a](https://b.org/c.md)", "api.md") == "[a](https://b.org/c.md)"


def test_fences_name_a_language_only() -> None:
    assert pages.one_word_fences("```python requires=onnx\nx\n```") == "```python\nx\n```"


def test_the_reference_names_each_public_name() -> None:
    for package, text in zip(pages.PACKAGES, reference.pages().values(), strict=True):
        module = package if package == "flambeau" else f"flambeau_{package}"
        init = ROOT / "packages" / package / "src" / module / "__init__.py"
        names = set(reference.public_names(ast.parse(init.read_text()))) - {"__version__"}
        assert set(re.findall(rf"^::: {module}\.(\w+)$", text, re.MULTILINE)) == names


def test_every_page_of_docs_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    listed = set(re.findall(r"- ([\w/-]+\.md)$", navigation, re.MULTILINE))
    written = {path.name for path in (ROOT / "docs").glob("*.md")} | set(pages.PAGES.values())
    assert listed == written | {f"reference/{package}.md" for package in PACKAGES}


def test_the_picture_of_passes_shows_the_lists_that_run() -> None:
    drawn = pictures.pass_lists()
    for name in ("PASSES", "PRIMITIVE_PASSES", "TRAINING_PASSES"):
        passes = [step for step, _ in getattr(autograd_pipeline, name)]
        assert drawn[f"autograd: {name}"] == passes
    passes = [step for step, _ in inductor_pipeline.GRAPH_PASSES]
    assert drawn["inductor: GRAPH_PASSES"] == passes
    shown = texts(pictures.passes_picture())
    assert all(step in shown for steps in drawn.values() for step in steps)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_floors_hold_each_module_above_its_imports(package: str) -> None:
    found = pictures.imports(package)
    edges = {
        name: {other for owner, other in each if owner == package and other in found} - {name}
        for name, each in found.items()
    }
    levels = pictures.floors(edges)
    height = {name: -depth for depth, names in enumerate(levels) for name in names}
    assert height.keys() == edges.keys()
    assert all(height[name] > height[other] for name in edges for other in edges[name])


def test_a_stale_picture_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    with pytest.raises(CheckFailed, match=r"packages\.svg, passes\.svg"):
        pictures.check()
    for name, text in pictures.pictures().items():
        (tmp_path / name).write_text(text)
    pictures.check()
    (tmp_path / "passes.svg").write_text("")
    with pytest.raises(CheckFailed, match=r": passes\.svg;"):
        pictures.check()
