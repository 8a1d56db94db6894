"""Checks that read the sources: lint, types, layers, banned imports, changelog fragments."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tools.checks.command import PACKAGES, ROOT, CheckFailed, run_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BANNED = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch",
    "torch._decomp",
    "torch._refs",
    "torch._prims",
    "torch._prims_common",
    "torch._subclasses",
    "torch._export",
    "torch.export",
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.experimental.proxy_tensor",
)
"""What this project replaces: no module of ours names it, but for those whose name says `interop`.
"""


def lint() -> None:
    """Ruff's rules and its formatting."""
    run_python("-m", "ruff", "check", ".")
    run_python("-m", "ruff", "format", "--check", ".")


def types() -> None:
    """Mypy on every package's sources."""
    run_python("-m", "mypy", *(f"packages/{package}/src" for package in PACKAGES))


def layers() -> None:
    """The layers of docs/architecture.md, and no import cycles."""
    run_python(
        "-c",
        "import sys; from importlinter.cli import lint_imports_command as run; sys.exit(run())",
    )


def banned_imports() -> None:
    """No package imports the stack that it replaces, not even inside a function or through
    importlib.
    """
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for package in PACKAGES
        for path in sorted((ROOT / "packages" / package / "src").rglob("*.py"))
        if "interop" not in path.stem
        for line, name in imported_modules(path)
        if any(name == banned or name.startswith(banned + ".") for banned in BANNED)
    ]
    if found:
        raise CheckFailed("imports of what Flambeau replaces:\n  " + "\n  ".join(found))


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of each import statement and each importlib.import_module("...") in a file."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func)
            if called.endswith(("import_module", "__import__")):
                yield node.lineno, str(node.args[0].value)


def changelog() -> None:
    """Each package's fragments build into a changelog."""
    for package in PACKAGES:
        run_python(
            "-m", "towncrier", "build", "--draft", "--version", "next", "--date", "2000-01-01",
            cwd=ROOT / "packages" / package,
        )  # fmt: skip
