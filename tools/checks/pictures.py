"""The architecture, drawn from the sources: which package imports which, the passes in their order,
and the modules of each package in floors, each above all that it imports.

The first two are kept in docs/pictures/. The floors change with every new module: the site's build
draws them.

python -m tools.checks pictures           compare
python -m tools.checks.pictures           draw again
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from tools.checks.command import PACKAGES, ROOT, CheckFailed, module_name
from tools.checks.sources import imported_modules

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOLDER = ROOT / "docs" / "pictures"
WIDTH = 720
LINE = 26
CHARACTER = 7.3
"""Pixels of a character of the text, which is set in 12 pixels, monospaced."""
_STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#222}"
    ".page{fill:#fff}.box{fill:#fff3e0;stroke:#e65100}.floor{fill:#f5f5f5}"
    ".title{font-weight:bold}.arrow{stroke:#777;fill:none;marker-end:url(#head)}.note{fill:#666}"
)
_HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 8 4 0 8z" fill="#777"/></marker>'
)


def check() -> None:
    """Fail if a picture is not what the sources say."""
    now = pictures()
    stale = [name for name, text in now.items() if _read(FOLDER / name) != text]
    stale += [path.name for path in FOLDER.glob("*.svg") if path.name not in now]
    if stale:
        raise CheckFailed(
            f"docs/pictures/ is not up to date: {', '.join(sorted(stale))}; "
            f"python -m tools.checks.pictures"
        )


def pictures() -> dict[str, str]:
    """The SVG text of each picture, by file name."""
    return {"packages.svg": packages_picture(), "passes.svg": passes_picture()}


# What the sources say
# ----------------------------------------------------------------------------


@cache
def imports(package: str) -> dict[str, set[tuple[str, str]]]:
    """For each module or folder of a package, the (package, module or folder) that it imports."""
    source = ROOT / "packages" / package / "src" / module_name(package)
    names = {module_name(other): other for other in PACKAGES}
    found: dict[str, set[tuple[str, str]]] = {}
    for path in sorted(source.rglob("*.py")):
        member = path.relative_to(source).parts[0].removesuffix(".py")
        if member in ("__init__", "_version"):
            continue
        edges = found.setdefault(member, set())
        for _, name in imported_modules(path):
            head, _, rest = name.partition(".")
            if head in names:
                edges.add((names[head], rest.partition(".")[0]))
    return found


def package_imports(package: str) -> set[str]:
    """The packages that a package imports."""
    return {other for edges in imports(package).values() for other, _ in edges} - {package}


def description(package: str) -> str:
    """What a package is: the first words of its description in pyproject.toml."""
    table = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())
    return table["project"]["description"].partition(":")[0]


def floors(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Names in floors, the highest first: each stands one above the highest that it needs."""

    @cache
    def height(name: str) -> int:
        return max((height(other) + 1 for other in edges[name]), default=0)

    heights = {name: height(name) for name in edges}
    return [
        sorted(name for name in edges if heights[name] == level)
        for level in range(max(heights.values()), -1, -1)
    ]


def pass_lists() -> dict[str, list[str]]:
    """The passes of autograd and of the inductor, in the order of each `pipeline.py`."""
    autograd = ROOT / "packages/autograd/src/flambeau_autograd/pipeline.py"
    inductor = ROOT / "packages/inductor/src/flambeau_inductor/pipeline.py"
    return {
        "autograd: PASSES": _literal_list(autograd, "PASSES"),
        "autograd: PRIMITIVE_PASSES": _literal_list(autograd, "PRIMITIVE_PASSES"),
        "autograd: TRAINING_PASSES": _literal_list(autograd, "TRAINING_PASSES"),
        "inductor: GRAPH_PASSES": _literal_list(inductor, "GRAPH_PASSES"),
        "inductor: schedule_graph": _calls(inductor, "schedule_graph"),
    }


def _literal_list(path: Path, name: str) -> list[str]:
    """The names of the passes in a literal list of (name, function)."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
            assert isinstance(node.value, ast.List | ast.Tuple)
            return [ast.literal_eval(item.elts[0]) for item in node.value.elts]  # type: ignore[attr-defined]
    raise CheckFailed(f"{path} has no list {name}")


def _calls(path: Path, function: str) -> list[str]:
    """The functions of lowering/ and scheduler/ that a function calls, in the order of its text."""
    tree = ast.parse(path.read_text())
    stages = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if (".lowering." in node.module or ".scheduler." in node.module) and alias.name.islower()
    }
    (body,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    called = [
        (node.lineno, node.col_offset, node.func.id)
        for node in ast.walk(body)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    return [name for _, _, name in sorted(called) if name in stages]


# Drawing
# ----------------------------------------------------------------------------


def packages_picture() -> str:
    """The packages in floors, with arrows to what they import, but for imports that other arrows
    imply.
    """
    edges = {name: package_imports(name) for name in PACKAGES}
    centres: dict[str, tuple[float, float]] = {}
    boxes, arrows = [], []
    levels = floors(edges)
    for level, names in enumerate(levels):
        for position, name in enumerate(names):
            centres[name] = (WIDTH * (position + 0.5) / len(names), 44 + 110 * level)
    for name, (x, y) in centres.items():
        words = description(name)
        width = max(200, len(words) * CHARACTER + 20)
        boxes.append(_box(x - width / 2, y - 24, width, 48))
        boxes.append(_text(x, y - 4, module_name(name), "title", "middle"))
        boxes.append(_text(x, y + 14, words, "note", "middle"))
    for a in PACKAGES:
        for b in sorted(edges[a] - {below for other in edges[a] for below in edges[other]}):
            (ax, ay), (bx, by) = centres[a], centres[b]
            arrows.append(f'<path class="arrow" d="M{ax:.0f} {ay + 24}L{bx:.0f} {by - 24}"/>')
    return _svg(88 + 110 * (len(levels) - 1), arrows + boxes)


def passes_picture() -> str:
    """The lists of passes, a row for each package; each list from the first pass to the last."""
    lists = pass_lists()
    column = max(len(word) for name, steps in lists.items() for word in (name, *steps))
    width = column * CHARACTER + 16
    parts: list[str] = []
    top = 12
    for package in dict.fromkeys(title.partition(":")[0] for title in lists):
        row = {title: steps for title, steps in lists.items() if title.startswith(package)}
        for position, (title, steps) in enumerate(row.items()):
            x = 12 + position * (width + 24)
            parts.append(_text(x, top + 12, title, "title"))
            parts += _column(steps, x, top + 28, width)
        top += 44 + max(map(len, row.values())) * 44
    return _svg(top - 12, parts, 3 * (width + 24))


def _column(steps: list[str], x: float, top: float, width: float) -> list[str]:
    """Boxes below one another, with arrows between them."""
    parts = []
    for row, name in enumerate(steps):
        y = top + row * 44
        parts += [_box(x, y, width, LINE), _text(x + 8, y + 17, name)]
        if row:
            middle = x + width / 2
            parts.append(f'<path class="arrow" d="M{middle:.0f} {y - 18:.0f}v17"/>')
    return parts


def modules_picture(package: str) -> str:
    """The modules and folders of a package in floors; folders end in a slash."""
    found = imports(package)
    source = ROOT / "packages" / package / "src" / module_name(package)
    edges = {
        name: {b for p, b in each if p == package and b in found and b != name}
        for name, each in found.items()
    }
    parts: list[str] = []
    y = 12.0
    for names in floors(edges):
        x, top = 24.0, y
        chips = []
        for name in names:
            label = f"{name}/" if (source / name).is_dir() else name
            width = len(label) * CHARACTER + 16
            if x + width > WIDTH - 24:
                x, y = 24.0, y + LINE + 6
            chips += [_box(x, y + 8, width, LINE), _text(x + 8, y + 25, label)]
            x += width + 8
        y += LINE + 16
        size = f'width="{WIDTH - 24}" height="{y - top:.0f}"'
        parts.append(f'<rect class="floor" x="12" y="{top:.0f}" {size}/>')
        parts += chips
        y += 8
    return _svg(y + 4, parts)


def _box(x: float, y: float, width: float, height: float) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return f'<rect class="box" x="{x:.0f}" y="{y:.0f}" {size} rx="4"/>'


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    attributes = f'x="{x:.0f}" y="{y:.0f}" class="{style}" text-anchor="{anchor}"'
    return f"<text {attributes}>{escape(text)}</text>"


def _svg(height: float, parts: list[str], width: float = WIDTH) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<style>{_STYLE}</style>",
        f"<defs>{_HEAD}</defs>",
        f'<rect class="page" {size}/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def main() -> None:
    """Draw all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
