"""Build C++ kernels with g++ and load them.

A Source is header-free C++ (no includes), so a compile costs only what the kernels themselves cost.
Sources are independent translation units, compiled in parallel, each to one shared library that the
cache then owns.

One OpenMP runtime: kernels are linked against the very libgomp that torch has loaded, so that
torch's thread pool and thread count serve kernels too.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from flambeau_runtime.build import isa, sanitizer
from flambeau_runtime.build.beside import beside
from flambeau_runtime.cache import Cache, CacheUse, binding, key_of, recording_cache_use, unwritable
from flambeau_runtime.cache_locks import KeyLock, one_at_a_time
from flambeau_runtime.environment_errors import (
    CacheError,
    CompilerNotFound,
    CompilerUnusable,
    KernelNotLoadable,
)
from flambeau_runtime.object_stores import cache_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_runtime.options import RuntimeOptions

# IEEE semantics are kept (NaN, infinities, -0.0, no reassociation, no contraction to fma, as in
# eager); only errno, traps and signalling NaNs are given up.
BASE_FLAGS = (
    "-x", "c++", "-std=c++17", "-O3", "-shared", "-fPIC", "-fopenmp", "-pipe", "-w",
    "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions", "-fno-rtti", "-fno-plt", "-fno-semantic-interposition",
    "-fno-asynchronous-unwind-tables", "-ffp-contract=off", "-fwrapv", "-fvisibility=hidden",
)
LINK_FLAGS = ("-x", "none", "-Wl,--as-needed", "-Wl,-O0", "-Wl,--no-undefined")
LEAN_LIBRARIES = ("-nodefaultlibs", "-lgcc", "-lc")
"""Of the libraries that g++ links by default, those that a kernel can need. The C++ library is not
one, and reading its symbols takes a fifth of a small kernel's build.
"""
LIBRARIES = ("-lmvec", "-lm") if platform.machine() == "x86_64" and sys.platform == "linux" else ("-lm",)

WORDS = 2000
"""Characters of a compiler's words that a message shows, where they are not about a kernel of ours.
"""

_FULL_DISK = ("No space left on device", "Disk quota exceeded")
_DEFECT = "internal compiler error"
_CRASH = ("signal terminated program", _DEFECT)
_NOT_FOUND = "undefined reference"
_MILDER_FLAGS = (("-O2",), ("-O1", "-fno-tree-vectorize"))
"""Tried one after the other where an optimisation of the compiler fails on a text (GCC 12 does)."""


class CompileError(RuntimeError):
    """The compiler refused a Source; the message holds its words and the path of the text."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler with its flags: all that, beside the text, decides what a Source compiles to."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    identity: str

    def key(self, text: str) -> str:
        """The cache key of a Source."""
        return key_of("cpp", self.identity, "\0".join(self.flags), "\0".join(self.libraries), text)

    def with_all_libraries(self) -> Toolchain:
        """This toolchain with the libraries that the compiler links by default."""
        libraries = tuple(each for each in self.libraries if each not in LEAN_LIBRARIES)
        return dataclasses.replace(self, libraries=libraries)


def toolchain(options: RuntimeOptions) -> Toolchain:
    """The toolchain that these options name; CompilerNotFound if there is none."""
    command = _command(options.cxx)
    level = options.isa or isa.detect()
    openmp = openmp_runtime()
    return Toolchain(
        command=command,
        flags=(
            *BASE_FLAGS, f"-DGLIBC_MINOR={glibc_minor()}", f"-DCACHE_BYTES={isa.cache_bytes()}L",
            *isa.compiler_flags(level),
            *(sanitizer.flags() if options.sanitize else ()), *options.cxx_flags,
        ),  # fmt: skip
        libraries=(
            *((openmp,) if openmp else ()), *LIBRARIES,
            *(LEAN_LIBRARIES if openmp and _links_leanly(command, options) else ()),
        ),  # fmt: skip
        identity="\0".join(map(_identity, command)),
    )


def _command(cxx: str) -> tuple[str, ...]:
    """The compiler's command: one program, or words of a shell (`ccache g++`)."""
    try:
        words = [cxx] if shutil.which(cxx) else shlex.split(cxx)
        path = shutil.which(words[0]) if words else None
    except ValueError:  # an open quote, a NUL
        path = None
    if path is None:
        raise CompilerNotFound(f"no C++ compiler {cxx!r} was found")
    return (path, *words[1:])


def _links_leanly(command: Sequence[str], options: RuntimeOptions) -> bool:
    """Whether the libraries that a kernel can need are known: for other compilers, sanitizers and
    flags of the user's they are not.
    """
    if options.sanitize or options.cxx_flags or sys.platform != "linux":
        return False
    return re.fullmatch(r"(.*-)?g\+\+(-[\d.]+)?", os.path.basename(command[-1])) is not None


def _identity(word: str) -> str:
    """A word of the command, with the state of the program that it names, if it does."""
    path = shutil.which(word)
    if path is None:
        return word
    status = os.stat(os.path.realpath(path))
    return f"{word} {os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}"


@lru_cache(maxsize=1)
def glibc_minor() -> int:
    """The 36 of glibc 2.36, or 0 for another C library: decides which vector functions exist."""
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


def load_libraries(texts: Sequence[str], options: RuntimeOptions) -> list[ctypes.CDLL]:
    """Compile each text, or find it in the cache, and load it; the libraries, in order.

    CompileError where the compiler refuses a text; an EnvironmentProblem where there is none, or
    the cache cannot be used.
    """
    return begin_libraries(texts, options)()


def begin_libraries(
    texts: Sequence[str], options: RuntimeOptions
) -> Callable[[], list[ctypes.CDLL]]:
    """Begin to compile the texts that the cache has not; what waits for them and loads the
    libraries, as `load_libraries` does.
    """
    paths = begin_build(texts, options)
    return lambda: [_library(path) for path in paths()]


def _library(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelNotLoadable(f"the kernel {path} cannot be loaded: {error}") from error


def build(texts: Sequence[str], options: RuntimeOptions) -> list[Path]:
    """Compile each text to a shared library, or find it in the cache; the files' paths, in order.
    """
    return begin_build(texts, options)()


def begin_build(texts: Sequence[str], options: RuntimeOptions) -> Callable[[], list[Path]]:
    """Look for each text in the cache, and begin to compile what is missing; what waits for that
    and returns what `build` does.
    """
    tools = toolchain(options)
    cache = cache_of(options)
    keys = [tools.key(text) for text in texts]
    found: dict[str, Path] = {}
    if options.use_cache:
        for key in dict.fromkeys(keys):
            path = cache.lookup("cpp", key)
            if path is not None:
                found[key] = path
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
    if not missing:
        return lambda: [found[key] for key in keys]
    compiled = beside(partial(_built_once if options.use_cache else _build_all, missing, tools, cache))

    def paths() -> list[Path]:
        result = found | compiled()
        return [result[key] for key in keys]

    return paths


def build_ahead(texts: Sequence[str], options: RuntimeOptions) -> None:
    """Begin to compile texts that a program will have, without a wait: `build` finds them in the
    cache, or waits for them. What goes wrong is for `build` to say.
    """
    if options.use_cache:
        beside(partial(build, texts, options))


def _built_once(missing: dict[str, str], tools: Toolchain, cache: Cache) -> dict[str, Path]:
    """Build what no other process builds just now, then take what others have built."""
    locks = {key: KeyLock(cache, "cpp", key) for key in missing}
    result: dict[str, Path] = {}
    try:
        own = {key for key, lock in locks.items() if lock.acquire()}
        # Another process may have stored it since we looked.
        result = {key: path for key in own if (path := _stored(cache, key)) is not None}
        result |= _build_all({key: missing[key] for key in own - result.keys()}, tools, cache)
    finally:
        for lock in locks.values():
            lock.release()
    for key in missing.keys() - result.keys():
        with one_at_a_time(cache, "cpp", key):
            path = _stored(cache, key)
            result |= {key: path} if path else _build_all({key: missing[key]}, tools, cache)
    return result


def _stored(cache: Cache, key: str) -> Path | None:
    """What another process has stored here since the miss, which is counted."""
    with recording_cache_use(CacheUse()):
        return Cache(cache.root).lookup("cpp", key)


def _build_all(missing: dict[str, str], tools: Toolchain, cache: Cache) -> dict[str, Path]:
    if not missing:
        return {}
    with cache.working_directory() as folder, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        running = {key: pool.submit(_compile, tools, text, key, folder, cache) for key, text in missing.items()}
        return {key: cache.store("cpp", key, compiled.result(), ".so") for key, compiled in running.items()}


def _compile(tools: Toolchain, text: str, key: str, folder: Path, cache: Cache) -> bytes:
    """The shared library of a text, which holds the symbol that binds it to its key."""
    symbol = binding("cpp", key)
    mark = f'\nextern "C" __attribute__((visibility("default"))) const char {symbol} = 0;\n'
    library, words = _run_compiler(tools, text + mark, folder / key)
    if library is None and _NOT_FOUND in words:
        library, words = _run_compiler(tools.with_all_libraries(), text + mark, folder / key)
    for milder in _MILDER_FLAGS:
        if library is not None or _DEFECT not in words:
            break
        library, words = _run_compiler(tools, text + mark, folder / key, milder)
    if library is not None and symbol.encode() in library:
        return library
    if any(full in words for full in _FULL_DISK):
        raise CacheError(f"the disk of the cache directory {cache.root} is full", f"free some space, or {CacheError.hint}")
    command = " ".join(tools.command)
    if any(crash in words for crash in _CRASH):
        kept = cache.keep("failed", f"{key}.cpp", text.encode())
        hint = f"is there enough memory? else {CompilerUnusable.hint}"
        raise CompilerUnusable(f"{command} crashed or was killed on a generated kernel (its text: "
            f"{kept}):\n{words}", hint)
    probed, its_words = _run_compiler(tools, mark, folder / f"{key}-probe")
    if probed is None or symbol.encode() not in probed:
        raise CompilerUnusable(f"{command} cannot compile even an empty kernel:\n{its_words.strip()[:WORDS]}")
    kept = cache.keep("failed", f"{key}.cpp", text.encode())
    raise CompileError(f"{command} failed on a generated kernel (its text: {kept}):\n{words}")


def _run_compiler(tools: Toolchain, text: str, stem: Path, more: Sequence[str] = ()) -> tuple[bytes | None, str]:
    """One run: the shared library's content, None where there is none, and the compiler's words."""
    source, library = stem.with_suffix(".cpp"), stem.with_suffix(".so")
    try:
        source.write_text(text)
    except OSError as error:
        raise unwritable(stem.parent, error) from error
    command = [*tools.command, *tools.flags, *more, str(source), "-o", str(library), *LINK_FLAGS, *tools.libraries]
    surroundings = {**os.environ, "TMPDIR": str(stem.parent), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            cwd=stem.parent, env=surroundings, check=False,
        )  # fmt: skip
    except OSError as error:
        raise CompilerUnusable(f"{' '.join(tools.command)} cannot be started: {error}") from error
    words = done.stderr.decode(errors="replace")
    if done.returncode < 0:
        words += f"\nsignal terminated program ({signal.strsignal(-done.returncode)})"
    if "lmvec" in words:
        words += "\nglibc's vector math library (libmvec) is missing; Flambeau needs glibc 2.22 or newer with its libmvec."
    if done.returncode:
        return None, words
    try:
        return library.read_bytes(), words
    except OSError as error:
        return None, f"{words}\nit ended without an error, but wrote no library ({error})"
