"""The on-disk cache: built kernels and stored Programs, found by the hash of what they were made from.

    <root>/entries/<kind>/<key>.json     {"sha256": ..., "suffix": ".so"}: which object a key stands for
    <root>/objects/<sha256>.so           the object, named by its own content

The root is a 0700 directory of the user's.  An entry counts only if the user owns its files, nobody else may write them, and
the object's content has the hash the entry names; anything else is a miss, never an error.  Files appear by rename, whole.
Objects are shared libraries and JSON text; nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY_MODE = 0o700


@dataclass
class CacheUse:
    """What was asked of caches and found, and what was not; and all that was found or stored, as (root, kind, key)."""

    hits: int = 0
    misses: int = 0
    entries: dict[tuple[Path, str, str], None] = field(default_factory=dict)


_USE: ContextVar[CacheUse | None] = ContextVar("cache_use", default=None)
"""Where this thread's use of caches is written down.  The package's one dynamically scoped object."""


@contextlib.contextmanager
def recording_cache_use(use: CacheUse) -> Iterator[None]:
    """Add what the block asks of caches to `use`."""
    token = _USE.set(use)
    try:
        yield
    finally:
        _USE.reset(token)


class CacheError(RuntimeError):
    """The cache directory cannot be used safely; the message says what to do."""


class Cache:
    """A content-addressed store under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ready = False

    def lookup(self, kind: str, key: str) -> Path | None:
        """The verified object stored under a key, or None."""
        found = self._find(kind, key)
        return found[0] if found else None

    def read(self, kind: str, key: str) -> bytes | None:
        """The verified content stored under a key, or None."""
        found = self._find(kind, key)
        return found[1] if found else None

    def _find(self, kind: str, key: str) -> tuple[Path, bytes] | None:
        found = self._read_entry(kind, key)
        use = _USE.get()
        if use is not None:
            if found is None:
                use.misses += 1
            else:
                use.hits += 1
                use.entries[self.root, kind, key] = None
        return found

    def store(self, kind: str, key: str, content: bytes, suffix: str) -> Path:
        """Put `content` under a key and return the object's path; a concurrent store of the same key is harmless."""
        self._prepare()
        digest = hashlib.sha256(content).hexdigest()
        path = self.root / "objects" / f"{digest}{suffix}"
        if _owned_content(path) != content:
            _write_atomically(path, content)
        entry = json.dumps({"sha256": digest, "suffix": suffix}).encode()
        _write_atomically(self._entry_path(kind, key), entry)
        use = _USE.get()
        if use is not None:
            use.entries[self.root, kind, key] = None
        return path

    def working_directory(self) -> tempfile.TemporaryDirectory[str]:
        """A private folder for a build, removed when closed."""
        self._prepare()
        return tempfile.TemporaryDirectory(dir=self.root, prefix="build-")

    def _read_entry(self, kind: str, key: str) -> tuple[Path, bytes] | None:
        if not _is_private(self.root):
            return None
        text = _owned_content(self._entry_path(kind, key))
        if text is None:
            return None
        try:
            entry = json.loads(text)
            digest, suffix = entry["sha256"], entry["suffix"]
        except (ValueError, KeyError, TypeError):
            return None
        if not (
            isinstance(digest, str)
            and digest.isalnum()
            and isinstance(suffix, str)
            and "/" not in suffix
        ):
            return None
        path = self.root / "objects" / f"{digest}{suffix}"
        content = _owned_content(path)
        if content is None or hashlib.sha256(content).hexdigest() != digest:
            return None
        return path, content

    def _entry_path(self, kind: str, key: str) -> Path:
        return self.root / "entries" / kind / f"{key}.json"

    def _prepare(self) -> None:
        """Make the root, or refuse one that others could write to."""
        if self._ready:
            return
        self.root.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        if not _is_private(self.root):
            raise CacheError(
                f"the cache directory {self.root} is not a directory that you own and only you may write to; "
                f"run `chmod 700 {self.root}` if it is yours, or name another as the cache_dir option"
            )
        (self.root / "objects").mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        self._ready = True


def _is_private(directory: Path) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    writable_by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not writable_by_others


def _owned_content(path: Path) -> bytes | None:
    """The content of a regular file that the user owns and nobody else may write, or None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(descriptor)
    owned = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if not owned or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(descriptor)
        return None
    with open(descriptor, "rb") as file:
        return file.read()


def _write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def key_of(*parts: str | bytes) -> str:
    """The hash of some parts, each delimited."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
