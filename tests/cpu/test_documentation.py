"""The documentation's Python runs, and the maps of the code name all of it.

A file's blocks run in order, in one namespace, in an empty directory. A fence may say more than the
language:

    ```python requires=onnx,onnxscript     runs where these packages are installed
    ```python from=path/of/a/file.py       an excerpt: it stands in that file as it stands here
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
import os
import pwd
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch

from tools.checks.command import PACKAGES, module_name

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
    """A fenced block: its language, what its fence says besides, its text, and the line that it
    begins on.
    """

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
    """Execute a block; its lines are the page's, for tracebacks and for whoever asks for its
    source.
    """
    source = "\n" * (block.line - 1) + block.text
    linecache.cache[page] = (len(source), None, source.splitlines(keepends=True), page)
    exec(compile(source, page, "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in (ROOT / page).read_text()]
)
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name, password, uid, gid, about, _, shell = pwd.getpwuid(os.geteuid())
    user = pwd.struct_passwd((name, password, uid, gid, about, str(tmp_path), shell))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)  # whose home has the caches
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


# Maps
# ----------------------------------------------------------------------------


def members(folder: Path) -> set[str]:
    """The modules and packages of a folder, by name."""
    found = {file.stem for file in folder.glob("*.py")}
    found |= {init.parent.name for init in folder.glob("*/__init__.py")}
    return found - {"__init__", "_version"}


def named(text: str) -> set[str]:
    """The words of what a text sets in code."""
    return {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", code)}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_names_its_modules(package: str) -> None:
    readme = (ROOT / "packages" / package / "README.md").read_text()
    source = ROOT / "packages" / package / "src" / module_name(package)
    missing = sorted(members(source) - named(readme))
    assert not missing


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_that_lists_modules_lists_all(package: str) -> None:
    for init in (ROOT / "packages" / package / "src" / module_name(package)).glob(
        "*/**/__init__.py"
    ):
        text = ast.get_docstring(ast.parse(init.read_text())) or ""
        listed = set(re.findall(r"\b(\w+)(?:\.py|/)", text))
        if len(listed) >= 3:
            missing = sorted(members(init.parent) - listed)
            assert not missing, init


def test_the_architecture_names_every_folder() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    for package in PACKAGES:
        for init in (ROOT / "packages" / package / "src" / module_name(package)).glob(
            "*/__init__.py"
        ):
            assert f"`{package}/{init.parent.name}/" in page
    for folder in ("tools", "tests"):
        for item in (ROOT / folder).iterdir():
            if item.is_dir() and item.name != "__pycache__":
                assert f"`{folder}/{item.name}/`" in page


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
            assert "://" in link or (ROOT / page).parent.joinpath(link).exists(), f"{page}: {link}"


def test_paths_lead_somewhere() -> None:
    """What a page sets in code and looks like a path of the repository is one."""
    for page in PAGES:
        for path in re.findall(
            r"`((?:packages|tests|tools|docs|examples)/[\w./-]*)`", (ROOT / page).read_text()
        ):
            assert (ROOT / path).exists(), f"{page}: {path}"
