"""`save_cache_artifacts` and `load_cache_artifacts`: what this process has compiled or read, as
bytes to carry to another machine: kernels, and, with the option `graph_cache`, graphs and entries.

The bytes are a zip archive of what the cache on disk holds: objects named `<kind>/<key><suffix>`,
and MANIFEST, which lists them with their hashes. An object counts only under the key that it is
bound to. Nothing is unpickled. The objects contain machine code, and text that leads to it, so load
them only from where you would load a shared library from.

The keys hold what an object depends on: versions, the compiler's files by content, options, and the
processor. On another machine, what does not fit is never read.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from flambeau import stored_entries
from flambeau.environment import Environment, read_environment
from flambeau.options import resolve
from flambeau.report import all_reports
from flambeau_runtime.cache import Cache, binding, read_entry

MANIFEST = "manifest.json"
FORMAT = 2


@dataclass(frozen=True)
class CacheInfo:
    """What an archive holds, by kind ("cpp", "triton", "graph", "program", "entry"), as keys of the
    cache.
    """

    artifacts: dict[str, tuple[str, ...]]

    def __len__(self) -> int:
        return sum(map(len, self.artifacts.values()))


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """The kernels, graphs and entries of all live compiled callables of this process; None if there
    are none.
    """
    entries: dict[tuple[Path, str, str], None] = {}
    for report in all_reports():
        for graph in report.graphs:
            entries |= graph.cache.entries
        entries |= dict.fromkeys(report.texts())
    hashes: dict[str, str] = {}
    packed: dict[str, list[str]] = {}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for root, kind, key in entries:
            found = read_entry(root, kind, key)
            if found is not None and key not in packed.get(kind, ()):
                name = f"{kind}/{key}{found[0].suffix}"
                archive.writestr(name, found[1])
                hashes[name] = hashlib.sha256(found[1]).hexdigest()
                packed.setdefault(kind, []).append(key)
        archive.writestr(MANIFEST, json.dumps({"format": FORMAT, "objects": hashes}))
    if not packed:
        return None
    return buffer.getvalue(), CacheInfo({kind: tuple(keys) for kind, keys in packed.items()})


def load_cache_artifacts(serialized_artifacts: bytes) -> CacheInfo:
    """Put what `save_cache_artifacts` returned into this machine's cache. ValueError for bytes that
    are no such archive.

    All of it is checked before anything is stored. What is found by another compiler, kind of
    processor or version is never used. Entries join those that are there under the same key.
    """
    cache = Cache(cache_dir(read_environment()))
    try:
        contents = _verified(serialized_artifacts)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise _not_ours(error) from None
    unpacked: dict[str, list[str]] = {}
    for path, content in contents:
        kind, key = path.parts[0], path.stem
        if kind == stored_entries.KIND:
            content = stored_entries.joined(key, cache.read(kind, key), content)
        cache.store(kind, key, content, path.suffix)
        unpacked.setdefault(kind, []).append(key)
    return CacheInfo({kind: tuple(keys) for kind, keys in unpacked.items()})


def _verified(serialized: bytes) -> list[tuple[PurePosixPath, bytes]]:
    """The objects of an archive; ValueError where one is not what the manifest lists, is not bound
    to its key, or has a name that is none.
    """
    with zipfile.ZipFile(io.BytesIO(serialized)) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    try:
        manifest = json.loads(contents.pop(MANIFEST, b""))
        listed = manifest["objects"] if manifest["format"] == FORMAT else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _not_ours("it has no manifest") from None
    if listed != {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}:
        raise _not_ours("its objects are not those of its manifest")
    verified = [(PurePosixPath(name), content) for name, content in contents.items()]
    for path, content in verified:
        parts = path.parts
        if len(parts) != 2 or not parts[0].isidentifier() or not path.stem.isalnum():
            raise _not_ours(f"a member is {str(path)!r}")
        if binding(parts[0], path.stem).encode() not in content:
            raise _not_ours(f"{str(path)!r} is not bound to its key")
    return verified


def _not_ours(why: object) -> ValueError:
    return ValueError(f"these bytes are no cache artifacts of Flambeau: {why}")


def cache_dir(environment: Environment) -> Path:
    """The cache directory that this environment asks for."""
    resolved = resolve(
        fullgraph=False, dynamic=None, mode=None, options=None, environment=environment
    )
    return resolved.runtime.cache_dir
