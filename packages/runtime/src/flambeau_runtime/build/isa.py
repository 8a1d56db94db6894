"""Which vector instructions and caches this machine has, and the compiler flags that say so.

The flags come from the processor's own list (CPUID, as the kernel reports it), not from compiling
probes.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path

AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
AVX2 = ("avx2", "fma", "f16c")

# CPUID flag -> g++ flag, for what is used beyond the base of each level.
EXTENSIONS = {
    "bmi1": "-mbmi",
    "bmi2": "-mbmi2",
    "avx512cd": "-mavx512cd",
    "avx512_bf16": "-mavx512bf16",
    "avx512_fp16": "-mavx512fp16",
    "avx512_vnni": "-mavx512vnni",
    "avx_vnni": "-mavxvnni",
    "amx_bf16": "-mamx-bf16",
    "amx_int8": "-mamx-int8",
}

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
DEFAULT_CACHE = 32 << 20

LEVELS = ("avx512", "avx2", "baseline")


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """The processor's feature flags; empty where the system does not list them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


@lru_cache(maxsize=1)
def cache_bytes() -> int:
    """The size of the last-level cache, rounded down to a power of two: machines that are nearly
    alike share what was built. DEFAULT_CACHE where the system does not say.
    """
    sizes = []
    for path in CACHES.glob("index*/size"):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        digits = text.rstrip("KMG")
        if digits.isdigit() and int(digits) > 0:
            sizes.append(int(digits) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0))
    return 1 << max(sizes, default=DEFAULT_CACHE).bit_length() - 1


def detect() -> str:
    """The highest level this machine has."""
    flags = cpu_flags()
    if platform.machine() == "x86_64":
        if flags.issuperset(AVX512) and flags.issuperset(AVX2):
            return "avx512"
        if flags.issuperset(AVX2):
            return "avx2"
    return "baseline"


def compiler_flags(level: str) -> list[str]:
    """The g++ flags of a level, with this machine's extensions where the level is its own."""
    if level not in LEVELS:
        raise ValueError(f"unknown ISA level {level!r}; known are {', '.join(LEVELS)}")
    # GCC 12 moves some vectors of 8 bytes through registers of MMX, which are those of x87: without
    # emms, long doubles are wrong from then on, also those inside of libm (lgamma).
    flags = ["-mno-mmx"] if platform.machine() == "x86_64" else []
    if level == "baseline":
        return flags
    flags += ["-mavx2", "-mfma", "-mf16c"]
    if level == "avx512":
        flags += [
            "-mavx512f",
            "-mavx512bw",
            "-mavx512dq",
            "-mavx512vl",
            "-mprefer-vector-width=512",
        ]
    own = cpu_flags()
    flags += [
        flag
        for name, flag in EXTENSIONS.items()
        if name in own and (level == "avx512" or not name.startswith(("avx512", "amx")))
    ]
    return flags
