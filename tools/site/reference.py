"""The reference: for each package a page with the docstrings of its public names, which are
those of `__all__`. The sources are read, not imported.
"""

from __future__ import annotations

import ast

from tools.site.pages import PACKAGES, ROOT


def pages() -> dict[str, str]:
    """The text of each page, by its name."""
    return {f"reference/{package}.md": _page(package) for package in PACKAGES}


def _page(package: str) -> str:
    module = package if package == "flambeau" else f"flambeau_{package}"
    init = ROOT / "packages" / package / "src" / module / "__init__.py"
    tree = ast.parse(init.read_text())
    parts = [f"# {module}", (ast.get_docstring(tree) or "").partition("\n")[0]]
    for name in public_names(tree):
        if name != "__version__":
            parts.append(f"::: {module}.{name}")
    return "\n\n".join(parts) + "\n"


def public_names(module: ast.Module) -> list[str]:
    """The names in `__all__`, functions and classes as they stand there."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError("the module has no __all__")
