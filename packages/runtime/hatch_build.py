"""Build hook: compiles csrc/*.c into `flambeau_runtime._core` with the system C compiler.

Plain C, no torch headers, so one second of `cc` and no CMake.  The file is ABI-tagged (`_core.cpython-311-x86_64-linux-gnu.so`)
so that one checkout serves several Pythons, and carries the hash of its sources so that a stale binary is noticed.

    python packages/runtime/hatch_build.py --inplace     # for development: build beside the Python sources
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # `--inplace` needs only Python and a C compiler
    BuildHookInterface = object  # type: ignore[assignment,misc]

ROOT = Path(__file__).resolve().parent
PACKAGE = "flambeau_runtime"
FLAGS = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter",
         "-Wno-missing-field-initializers", "-Wno-cast-function-type", "-fno-strict-aliasing"]  # fmt: skip
LIBRARIES = ["-ldl"]


def source_hash(root: Path = ROOT) -> str:
    """A digest of every C source and header; the binary holds the one it was built from."""
    digest = hashlib.sha256()
    for path in sorted((root / "csrc").iterdir()):
        if path.suffix in (".c", ".h"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def target(root: Path = ROOT) -> Path:
    """Where the compiled module goes."""
    return root / "src" / PACKAGE / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"


def compile_core(root: Path = ROOT) -> Path:
    """Compile and put the module in place atomically; raise with the compiler's own words if that fails."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[:1]
    into = target(root)
    with tempfile.TemporaryDirectory(dir=into.parent) as folder:
        made = Path(folder) / into.name
        sources = sorted(str(path) for path in (root / "csrc").glob("*.c"))
        command = [*compiler, *FLAGS, f"-I{sysconfig.get_paths()['include']}", f'-DSOURCE_HASH="{source_hash(root)}"',
                   *sources, "-o", str(made), *LIBRARIES]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr}")
        if done.stderr:
            print(done.stderr, file=sys.stderr)
        made.replace(into)
    return into


class CustomBuildHook(BuildHookInterface):
    """hatchling's hook: makes the wheel a platform wheel that holds the compiled module."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        made = compile_core(Path(self.root))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(f"src/{PACKAGE}/{made.name}")


if __name__ == "__main__":
    if sys.argv[1:] != ["--inplace"]:
        sys.exit("usage: python hatch_build.py --inplace")
    print(compile_core())
