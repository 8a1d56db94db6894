"""Building the C extensions beside their sources, where processes may be running with them."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"


def hatch_build(package: str, folder: Path) -> ModuleType:
    """The build hook of a copy of the package's C sources."""
    shutil.copytree(PACKAGES / package / "csrc", folder / "csrc")
    path = Path(shutil.copy(PACKAGES / package / "hatch_build.py", folder))
    spec = importlib.util.spec_from_file_location(f"hatch_build_of_{package}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("package", ["capture", "runtime"])
def test_an_extension_of_these_sources_is_current(package: str, tmp_path: Path) -> None:
    hook = hatch_build(package, tmp_path)
    target = tmp_path / "src" / hook.EXTENSION
    assert not hook.is_current(target)
    hook.build(target)
    assert list(target.parent.iterdir()) == [target]
    assert hook.is_current(target)
    changed = Path(hook.__file__).stat().st_mtime_ns
    os.utime(target, ns=(changed - 1, changed - 1))
    assert not hook.is_current(target)  # its flags may be others
    os.utime(target)
    assert hook.is_current(target)
    source = sorted((tmp_path / "csrc").glob("*.c"))[0]
    source.write_text(source.read_text() + "\n")
    assert not hook.is_current(target)
