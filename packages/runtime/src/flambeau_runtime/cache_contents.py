"""What a cache directory holds: listed, verified, trimmed.

    entries_of(root)                         each entry: kind, key, bytes, when it was stored
    problem_of(root, entry)                  why the entry would not be read, or ""
    trim(root, largest=..., oldest=...)      the oldest entries go first; then what no entry names

Other processes may read and store meanwhile: an entry goes before its object, and what they find
incomplete is a miss. Objects and build folders that no entry names are left alone for an hour, in
which another process may be about to store their entry.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flambeau_runtime.cache import Cache, is_private, owned_content
from flambeau_runtime.environment_errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Iterator

RECENT = 3600.0
"""Seconds for which what no entry names may belong to a store that goes on."""


@dataclass(frozen=True)
class CacheEntry:
    """An entry of a cache; `object` is the file it names, None for what is no entry."""

    kind: str
    key: str
    path: Path
    object: Path | None
    size: int
    stored: float


def entries_of(root: Path) -> list[CacheEntry]:
    """All entries of a cache directory, the oldest first; CacheError if it is not the user's."""
    if root.exists() and not is_private(root):
        raise CacheError(
            f"{root} is not a directory that you own and only you may write to",
            f"run `chmod 700 {root}` if it is yours",
        )
    return sorted(_entries(root), key=lambda entry: entry.stored)


def _entries(root: Path) -> Iterator[CacheEntry]:
    for path in sorted((root / "entries").glob("*/*.json")):
        with contextlib.suppress(OSError):  # removed meanwhile
            status = path.lstat()
            named = _object_named(root, path)
            size = status.st_size
            if named is not None:
                with contextlib.suppress(OSError):
                    size += named.lstat().st_size
            yield CacheEntry(path.parent.name, path.stem, path, named, size, status.st_mtime)


def _object_named(root: Path, path: Path) -> Path | None:
    content = owned_content(path)
    try:
        entry = json.loads(content or b"")
        name = f"{entry['sha256']}{entry['suffix']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return root / "objects" / name if Path(name).name == name else None


def problem_of(root: Path, entry: CacheEntry) -> str:
    """Why an entry would not be read: such an entry is a miss, and is stored again."""
    if Cache(root).read(entry.kind, entry.key) is not None:
        return ""
    if entry.object is None:
        return "is no entry, or others may write it"
    if not entry.object.exists():
        return "its object is missing"
    return "its object is damaged, another key's, or others may write it"


def trim(root: Path, *, largest: int | None = None, oldest: float | None = None) -> tuple[int, int]:
    """Remove entries stored more than `oldest` seconds ago, then the oldest until at most `largest`
    bytes are left; and what no entry names. How many files or folders, and bytes, were removed.
    """
    entries = entries_of(root)
    now = time.time()
    kept = [entry for entry in entries if oldest is None or now - entry.stored <= oldest]
    total = sum(entry.size for entry in kept)
    while kept and largest is not None and total > largest:
        total -= kept.pop(0).size
    staying = {entry.path for entry in kept}
    removed = [_remove(entry.path) for entry in entries if entry.path not in staying]
    named = {entry.object for entry in kept}
    removed += [
        _remove(path)
        for path in (*(root / "objects").glob("*"), *root.glob("build-*"))
        if path not in named and (_was_named(path, entries) or now - _changed(path) > RECENT)
    ]
    return len(removed), sum(removed)


def _was_named(path: Path, entries: list[CacheEntry]) -> bool:
    return any(entry.object == path for entry in entries)


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def _remove(path: Path) -> int:
    """Remove a file, a link or a folder; its bytes."""
    size = 0
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            size = path.lstat().st_size
            path.unlink()
    return size
