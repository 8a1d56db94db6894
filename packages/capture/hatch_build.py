"""Builds flambeau_capture/_core from csrc/ with the system's C compiler: as a hatchling build hook,
and in place.

    # for development: writes the .so beside the package in src/
    python hatch_build.py --inplace

The file carries the interpreter's ABI tag (the frame hook reads CPython's own structures) and the
hash of its sources, which `flambeau_capture.core` compares with csrc/ where that is there, so a
stale binary is noticed. FLAMBEAU_NO_EXTENSION=1 skips it; without a working compiler the wheel is
pure Python, with the same results and slower calls.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

if "hatchling" in sys.modules:  # which loads this file; else, only a compiler is needed
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
else:
    BuildHookInterface = object  # type: ignore[assignment,misc]

ROOT = Path(__file__).resolve().parent
EXTENSION = "flambeau_capture/_core" + (sysconfig.get_config_var("EXT_SUFFIX") or ".so")
FLAGS = [
    "-std=gnu11",
    "-O2",
    "-g",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-missing-field-initializers",
]


def source_hash(folder: Path = ROOT / "csrc") -> str:
    """Hash of all C sources and headers, by name and content."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.c"), *folder.glob("*.h")]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def is_current(target: Path) -> bool:
    """Whether `target` was built from these sources, and after this file was changed last.
    Processes that run with it keep their file, and see none appear or change beside it.
    """
    try:
        built, changed = target.stat().st_mtime_ns, Path(__file__).stat().st_mtime_ns
        return built >= changed and source_hash().encode() in target.read_bytes()
    except OSError:
        return False


def build(target: Path) -> None:
    """Compiles and links the extension to `target`, atomically; CalledProcessError or OSError when
    that fails.
    """
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = sysconfig.get_path("include")
    sources = [str(path) for path in sorted((ROOT / "csrc").glob("*.c"))]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent.parent) as scratch:
        made = Path(scratch) / target.name
        command = [
            *compiler,
            *FLAGS,
            f'-DSOURCE_HASH="{source_hash()}"',
            f"-I{include}",
            f"-I{include}/internal",
            *sources,
            "-o",
            str(made),
        ]
        if sys.platform == "darwin":
            command += ["-undefined", "dynamic_lookup"]
        else:
            command += ["-ldl"]
        subprocess.run(command, check=True)
        made.replace(target)


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc,valid-type]
    """hatchling's hook: a platform wheel with the extension, or a pure one where it cannot be
    built.
    """

    PLUGIN_NAME = "custom"
    folder: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds beside the sources for an editable install, else into a folder of its own, and
        tells hatchling to include it.
        """
        if os.environ.get("FLAMBEAU_NO_EXTENSION") == "1":
            return
        self.folder = Path(tempfile.mkdtemp())
        target = (ROOT / "src" if version == "editable" else self.folder) / EXTENSION
        try:
            if version != "editable" or not is_current(target):
                build(target)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(
                f"flambeau_capture: no C compiler that works ({error}); calls will be slower"
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            build_data["force_include"][str(target)] = EXTENSION

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what was built outside the source tree."""
        if self.folder is not None:
            shutil.rmtree(self.folder)


if __name__ == "__main__":
    if sys.argv[1:] != ["--inplace"]:
        sys.exit(__doc__)
    build(ROOT / "src" / EXTENSION)
    print(ROOT / "src" / EXTENSION)
