"""Build C++ kernels with g++ and load them.

A Source is header-free C++ (no includes), so a compile costs only what the kernels themselves cost.  Sources are independent
translation units, compiled in parallel, each to one shared library that the cache then owns.

One OpenMP runtime: kernels are linked against the very libgomp that torch has loaded, so that torch's thread pool and thread
count serve kernels too.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from flambeau_runtime.build import isa
from flambeau_runtime.cache import Cache, key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flambeau_runtime.options import RuntimeOptions

# IEEE semantics are kept (NaN, infinities, -0.0, no reassociation, no contraction to fma, as in eager); only errno, traps and signalling NaNs are given up.
BASE_FLAGS = (
    "-x", "c++", "-std=c++17", "-O3", "-shared", "-fPIC", "-fopenmp", "-pipe", "-w",
    "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions", "-fno-rtti", "-fno-plt", "-fno-semantic-interposition",
    "-fno-asynchronous-unwind-tables", "-ffp-contract=off", "-fwrapv", "-fvisibility=hidden",
)  # fmt: skip
LINK_FLAGS = ("-x", "none", "-Wl,--as-needed", "-Wl,-O0", "-Wl,--no-undefined")
LIBRARIES = ("-lmvec", "-lm") if platform.machine() == "x86_64" and sys.platform == "linux" else ("-lm",)

INSTALL_HINT = (
    "Flambeau compiles CPU kernels with g++. Install it (Debian/Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`; "
    "conda: `conda install -c conda-forge gxx`), or name a compiler with the `cxx` option."
)


class CompilerNotFound(RuntimeError):
    """There is no C++ compiler; the message says what to install."""


class CompileError(RuntimeError):
    """The compiler refused a Source; the message holds its words and the path of the text."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler with its flags: all that, beside the text, decides what a Source compiles to."""

    path: str
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    identity: str

    def key(self, text: str) -> str:
        """The cache key of a Source."""
        return key_of("cpp", self.identity, "\0".join(self.flags), "\0".join(self.libraries), text)


def toolchain(options: RuntimeOptions) -> Toolchain:
    """The toolchain that these options name; CompilerNotFound if there is none."""
    path = shutil.which(options.cxx)
    if path is None:
        raise CompilerNotFound(f"no C++ compiler {options.cxx!r} was found. {INSTALL_HINT}")
    status = os.stat(os.path.realpath(path))
    level = options.isa or isa.detect()
    openmp = openmp_runtime()
    return Toolchain(
        path=path,
        flags=(*BASE_FLAGS, f"-DGLIBC_MINOR={glibc_minor()}", *isa.compiler_flags(level), *options.cxx_flags),
        libraries=(*((openmp,) if openmp else ()), *LIBRARIES),
        identity=f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}",
    )


@lru_cache(maxsize=1)
def glibc_minor() -> int:
    """The 36 of glibc 2.36, 0 where the C library is another: it decides which functions have vector variants."""
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    return int(version.split(".")[1]) if name == "glibc" and version.startswith("2.") else 0


@lru_cache(maxsize=1)
def openmp_runtime() -> str | None:
    """The file of the OpenMP runtime that this process has loaded (torch's), or None."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    for line in maps.splitlines():
        path = line.rpartition(" ")[2]
        if os.path.basename(path).startswith(("libgomp", "libiomp", "libomp")):
            return path
    return None


def build(texts: Sequence[str], options: RuntimeOptions) -> list[Path]:
    """Compile each text to a shared library, or find it in the cache; the files' paths, in order."""
    tools = toolchain(options)
    cache = Cache(options.cache_dir)
    keys = [tools.key(text) for text in texts]
    found: dict[str, Path] = {}
    if options.use_cache:
        for key in dict.fromkeys(keys):
            path = cache.lookup("cpp", key)
            if path is not None:
                found[key] = path
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
    if missing:
        with cache.working_directory() as folder, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            stems = {key: Path(folder) / key for key in missing}
            running = {key: pool.submit(_compile, tools, missing[key], stem, cache) for key, stem in stems.items()}
            for key, compiled in running.items():
                found[key] = cache.store("cpp", key, compiled.result(), ".so")
    return [found[key] for key in keys]


def _compile(tools: Toolchain, text: str, stem: Path, cache: Cache) -> bytes:
    """One compiler run; the shared library's content."""
    source, library = stem.with_suffix(".cpp"), stem.with_suffix(".so")
    source.write_text(text)
    command = [tools.path, *tools.flags, str(source), "-o", str(library), *LINK_FLAGS, *tools.libraries]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=stem.parent, check=False)
    if done.returncode:
        words = done.stderr.decode(errors="replace")
        if "lmvec" in words:
            words += "\nglibc's vector math library (libmvec) is missing; Flambeau needs glibc 2.22 or newer with its libmvec."
        kept = cache.store("failed", stem.name, text.encode(), ".cpp")
        raise CompileError(f"{tools.path} failed on a generated kernel (its text: {kept}):\n{words}")
    return library.read_bytes()
