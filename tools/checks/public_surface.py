"""The public surface: what each package's `__all__` names, with signatures, kept in
docs/public_surface/.

python -m tools.checks surface            compare
python -m tools.checks.public_surface     rewrite the files (review the diff, add a fragment)
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import TYPE_CHECKING

from tools.checks.command import PACKAGES, ROOT, CheckFailed, module_name

if TYPE_CHECKING:
    from pathlib import Path


def check() -> None:
    """Fail with a diff if a package's public surface is not the recorded one."""
    diffs = []
    for package in PACKAGES:
        recorded = record_path(package)
        before = recorded.read_text().splitlines() if recorded.exists() else []
        diffs += difflib.unified_diff(
            before, surface(package), str(recorded), "now", lineterm="", n=0
        )
    if diffs:
        raise CheckFailed("the public surface changed:\n" + "\n".join(diffs))


def record_path(package: str) -> Path:
    """Where a package's surface is recorded."""
    return ROOT / "docs" / "public_surface" / f"{package}.txt"


def surface(package: str) -> list[str]:
    """One line a public name: `name(signature)`, and below a class or module its public members."""
    module = importlib.import_module(module_name(package))
    lines = []
    for name in sorted(module.__all__):
        member = getattr(module, name)
        lines.append(f"{name}{signature(member)}")
        if inspect.ismodule(member):
            lines += [
                f"  .{public}{signature(getattr(member, public))}"
                for public in sorted(getattr(member, "__all__", ()))
            ]
        if inspect.isclass(member):
            lines += [
                f"  .{attribute}{signature(inspect.getattr_static(member, attribute))}"
                for attribute in sorted(_attributes(member))
                if not attribute.startswith("_")
            ]
    return lines


def _attributes(cls: type) -> set[str]:
    """Names in the class and in those bases that its own package defines."""
    package = cls.__module__.partition(".")[0]
    return {
        name
        for base in cls.__mro__
        if base.__module__.partition(".")[0] == package
        for name in vars(base)
    }


def signature(member: object) -> str:
    """A callable's signature as text, or "" for anything else."""
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    if not callable(member) or isinstance(member, property):
        return ""
    try:
        return str(inspect.signature(member))
    except (TypeError, ValueError):
        return "(...)"


def main() -> None:
    """Rewrite the recorded surfaces."""
    for package in PACKAGES:
        record_path(package).write_text("".join(f"{line}\n" for line in surface(package)))


if __name__ == "__main__":
    main()
