"""What the user's machine lacks, as data: one exception class a reason, each with a stable id, a
text and a hint.

These are no defects of the program or of Flambeau. The meta-package runs such a graph eagerly and
records the reason.
"""

from __future__ import annotations


class EnvironmentProblem(RuntimeError):
    """Kernels cannot be built or loaded here; `text` says what happened, `hint` what to do."""

    reason = "environment"
    hint = ""

    def __init__(self, text: str, hint: str = "") -> None:
        self.text = text
        self.hint = hint or type(self).hint
        super().__init__(f"{text}; {self.hint} [{self.reason}]")


class CacheError(EnvironmentProblem):
    """The cache directory cannot be used, or not safely."""

    reason = "unusable-cache"
    hint = (
        "name a directory that only you may write to with the cache_dir option or "
        "FLAMBEAU_CACHE_DIR"
    )


class CompilerNotFound(EnvironmentProblem):
    """There is no C++ compiler of the given name."""

    reason = "no-compiler"
    hint = (
        "install g++ (Debian/Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`; conda: "
        "`conda install -c conda-forge gxx`), or name a compiler with the cxx option or "
        "FLAMBEAU_CXX"
    )


class CompilerUnusable(EnvironmentProblem):
    """The C++ compiler fails on every text, does not start, or does not finish."""

    reason = "unusable-compiler"
    hint = (
        "name another compiler with the cxx option or FLAMBEAU_CXX (Flambeau needs GCC 9 or newer)"
    )


class KernelNotLoadable(EnvironmentProblem):
    """A kernel was built, but the system refuses to load it."""

    reason = "kernel-not-loadable"
    hint = (
        "is the cache directory mounted noexec? name another with the cache_dir option or "
        "FLAMBEAU_CACHE_DIR"
    )


class SanitizerNotLoaded(EnvironmentProblem):
    """Kernels are to be built under the address sanitizer, but the process began without it."""

    reason = "no-sanitizer"
    hint = (
        'start the process with LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ '
        '-print-file-name=libstdc++.so)" '
        "and ASAN_OPTIONS=detect_leaks=0, or leave the sanitize option and FLAMBEAU_SANITIZE unset"
    )


REASONS: dict[str, type[EnvironmentProblem]] = {
    kind.reason: kind
    for kind in (
        CacheError,
        CompilerNotFound,
        CompilerUnusable,
        KernelNotLoadable,
        SanitizerNotLoaded,
    )
}
