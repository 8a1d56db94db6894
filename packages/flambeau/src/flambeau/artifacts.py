"""`save_cache_artifacts` and `load_cache_artifacts`: the kernels this process has built or used, as
bytes to carry to another machine.

The bytes are a zip archive of what the cache on disk holds: objects named `<kind>/<key><suffix>`.
They contain machine code, so load them only from where you would load a shared library from.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from flambeau.environment import Environment, read_environment
from flambeau.options import resolve
from flambeau.report import all_reports
from flambeau_runtime.cache import Cache


@dataclass(frozen=True)
class CacheInfo:
    """Which kernels an archive holds, by kind ("cpp", "triton"), as keys of the cache."""

    artifacts: dict[str, tuple[str, ...]]

    def __len__(self) -> int:
        return sum(map(len, self.artifacts.values()))


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """The kernels of all live compiled callables of this process; None if there are none."""
    entries = dict.fromkeys(
        entry
        for report in all_reports()
        for graph in report.graphs
        for entry in graph.cache.entries
    )
    packed: dict[str, list[str]] = {}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for root, kind, key in entries:
            path = Cache(root).lookup(kind, key)
            if path is not None and key not in packed.get(kind, ()):
                archive.writestr(f"{kind}/{key}{path.suffix}", path.read_bytes())
                packed.setdefault(kind, []).append(key)
    if not packed:
        return None
    return buffer.getvalue(), CacheInfo({kind: tuple(keys) for kind, keys in packed.items()})


def load_cache_artifacts(serialized_artifacts: bytes) -> CacheInfo:
    """Put what `save_cache_artifacts` returned into this machine's cache. ValueError for bytes that
    are no such archive.

    Kernels are found by what they were made from, the compiler and the kind of processor among it:
    those of another kind are never used.
    """
    cache = Cache(cache_dir(read_environment()))
    unpacked: dict[str, list[str]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(serialized_artifacts)) as archive:
            contents = [(PurePosixPath(name), archive.read(name)) for name in archive.namelist()]
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"these bytes are no cache artifacts of Flambeau: {error}") from None
    for path, _ in contents:
        if len(path.parts) != 2 or not path.parts[0].isidentifier() or not path.stem.isalnum():
            raise ValueError(
                f"these bytes are no cache artifacts of Flambeau: a member is {str(path)!r}"
            )
    for path, content in contents:
        try:
            cache.store(path.parts[0], path.stem, content, path.suffix)
        except ValueError as error:
            raise ValueError(f"these bytes are no cache artifacts of Flambeau: {error}") from None
        unpacked.setdefault(path.parts[0], []).append(path.stem)
    return CacheInfo({kind: tuple(keys) for kind, keys in unpacked.items()})


def cache_dir(environment: Environment) -> Path:
    """The cache directory that this environment asks for."""
    resolved = resolve(
        fullgraph=False, dynamic=None, mode=None, options=None, environment=environment
    )
    return resolved.runtime.cache_dir
