"""The documentation's Python runs, and the maps of the code name all of it.

A file's blocks run in order, in one namespace, in an empty directory.  A fence may say more than the language:

    ```python requires=onnx,onnxscript     runs where these packages are installed
    ```python from=path/of/a/file.py       an excerpt: it stands in that file as it stands here
"""

from __future__ import annotations

import importlib.util
import linecache
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "packages/*/README.md")
    for page in ROOT.glob(pattern)
)
FENCE = re.compile(r"^```(\w+)(?: (.*))?\n((?:.*\n)*?)```$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, what its fence says besides, its text, and the line that it begins on."""

    language: str
    said: dict[str, str]
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page that name a language."""
    text = (ROOT / page).read_text()
    for found in FENCE.finditer(text):
        language, info, body = found.groups()
        said = dict(word.partition("=")[::2] for word in (info or "").split())
        yield Block(language, said, body, text.count("\n", 0, found.start()) + 2)


def run(page: str, block: Block, namespace: dict[str, object]) -> None:
    """Execute a block; its lines are the page's, for tracebacks and for whoever asks for its source."""
    source = "\n" * (block.line - 1) + block.text
    linecache.cache[page] = (len(source), None, source.splitlines(keepends=True), page)
    exec(compile(source, page, "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in (ROOT / page).read_text()]
)
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # where caches are by default
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": "page"}
    missing = set()
    for block in blocks(page):
        if block.language != "python":
            continue
        assert block.said.keys() <= {"requires", "from"}, f"{page}:{block.line}: {block.said}"
        if "from" in block.said:
            assert block.text in (ROOT / block.said["from"]).read_text(), f"{page}:{block.line}"
            continue
        needed = block.said.get("requires", "").split(",")
        absent = {name for name in needed if name and importlib.util.find_spec(name) is None}
        missing |= absent
        if not absent:
            run(page, block, namespace)
    if missing:
        pytest.skip(f"all but what needs {', '.join(sorted(missing))} has run")
