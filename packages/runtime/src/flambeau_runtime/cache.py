"""The on-disk cache: built kernels, found by the hash of what they were made from.

    <root>/entries/<kind>/<key>.json     which object a key stands for:
                                         {"kind": ..., "key": ..., "sha256": ..., "suffix": ".so"}
    <root>/objects/<sha256>.so           the object, named by its content; it holds
                                         `binding(kind, key)`

The root and its folders are 0700 directories of the user's, and no links. An entry counts only if
it and its object are bound to the key that is asked for, the user owns the files, nobody else may
write them, and the object's content has the hash that the entry names; anything else is a miss.
Files appear by rename, whole. Nothing is ever unpickled. A directory that cannot be written to, or
that others could write to, is a CacheError.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import tempfile
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from flambeau_runtime.environment_errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

DIRECTORY_MODE = 0o700
DAY = 86400.0
"""Seconds."""
ENTRY_LIMIT = 4096
"""Bytes of the longest entry that is read."""

_DIGEST = re.compile("[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[a-z]+")


@dataclass
class CacheUse:
    """The use of caches: how often something was found, missing and stored, and all that was found
    or stored, as (root, kind, key).
    Several threads may add to it.
    """

    hits: int = 0
    misses: int = 0
    stored: int = 0
    entries: dict[tuple[Path, str, str], None] = field(default_factory=dict)
    _lock: threading.Lock = field(
        default_factory=threading.Lock, init=False, repr=False, compare=False
    )

    def add(self, entry: tuple[Path, str, str], *, found: bool) -> None:
        """Count one question to a cache."""
        with self._lock:
            if found:
                self.hits += 1
                self.entries[entry] = None
            else:
                self.misses += 1

    def add_stored(self, entry: tuple[Path, str, str]) -> None:
        """Count what was stored."""
        with self._lock:
            self.stored += 1
            self.entries[entry] = None

    def include(self, other: CacheUse) -> None:
        """Add all that another one has counted."""
        with self._lock:
            self.hits += other.hits
            self.misses += other.misses
            self.stored += other.stored
            self.entries |= other.entries


_USE: ContextVar[CacheUse | None] = ContextVar("cache_use", default=None)
"""Where this thread's use of caches is written down, and that of threads that build for it. The
package's one dynamically scoped object.
"""


@contextlib.contextmanager
def recording_cache_use(use: CacheUse) -> Iterator[None]:
    """Add what the block asks of caches to `use`."""
    token = _USE.set(use)
    try:
        yield
    finally:
        _USE.reset(token)


def binding(kind: str, key: str) -> str:
    """The identifier of its key that an object holds; for a library, a symbol."""
    return f"flambeau_{kind}_{key}"


class ObjectStore(Protocol):
    """Keeps objects for several caches (`object_stores.py`); it proves what it returns."""

    def fetch(self, kind: str, key: str) -> tuple[bytes, str] | None:
        """The content and suffix of a key's object, or None."""

    def offer(self, kind: str, key: str, content: bytes, suffix: str) -> None:
        """Keep an object, if the store takes any."""


class Cache:
    """A content-addressed store under `root`, relative to the current directory. What it lacks is
    copied from `stores`, the first first, which are offered what it stores.
    """

    def __init__(self, root: Path, stores: Sequence[ObjectStore] = ()) -> None:
        # Compilers run in a folder of the cache, where a relative path means something else.
        self.root = root.absolute()
        self.stores = stores

    def lookup(self, kind: str, key: str) -> Path | None:
        """The verified object stored under a key, or None."""
        result = self._find(kind, key)
        return result[0] if result else None

    def read(self, kind: str, key: str) -> bytes | None:
        """The verified content stored under a key, or None."""
        result = self._find(kind, key)
        return result[1] if result else None

    def _find(self, kind: str, key: str) -> tuple[Path, bytes] | None:
        result = read_entry(self.root, kind, key)
        if result is not None:
            _note_use(self.root / "entries" / kind / f"{key}.json")
        else:
            result = self._fetch(kind, key)
        use = _USE.get()
        if use is not None:
            use.add((self.root, kind, key), found=result is not None)
        return result

    def store(self, kind: str, key: str, content: bytes, suffix: str) -> Path:
        """Put `content` under a key and return the object's path; a concurrent store of the same
        key is harmless.

        ValueError if the content does not hold `binding(kind, key)`; CacheError where the directory
        cannot be used.
        """
        if binding(kind, key).encode() not in content:
            raise ValueError(f"an object of kind {kind!r} is not bound to its key {key}")
        path = self._write(kind, key, content, suffix)
        use = _USE.get()
        if use is not None:
            use.add_stored((self.root, kind, key))
        for store in self.stores:
            store.offer(kind, key, content, suffix)
        return path

    def _fetch(self, kind: str, key: str) -> tuple[Path, bytes] | None:
        """Copy an object from the first of the stores that has it."""
        for store in self.stores:
            found = store.fetch(kind, key)
            if found is None or binding(kind, key).encode() not in found[0]:
                continue
            if _matches(_SUFFIX, found[1]):
                with contextlib.suppress(CacheError):  # as a store of the same object will say
                    return self._write(kind, key, *found), found[0]
        return None

    def _write(self, kind: str, key: str, content: bytes, suffix: str) -> Path:
        digest = hashlib.sha256(content).hexdigest()
        entry = {"kind": kind, "key": key, "sha256": digest, "suffix": suffix}
        with self._writing():
            path = self._folder("objects") / f"{digest}{suffix}"
            if owned_content(path) != content:
                write_atomically(path, content)
            folder = self._folder("entries", kind)
            write_atomically(folder / f"{key}.json", json.dumps(entry).encode())
        return path

    def keep(self, folder: str, name: str, content: bytes) -> Path:
        """Write a file that no key stands for, for people to look at; its path."""
        with self._writing():
            path = self._folder(folder) / name
            write_atomically(path, content)
        return path

    def lock_file(self, kind: str, key: str) -> Path:
        """The file that a process locks while it makes the object of a key."""
        with self._writing():
            return self._folder("locks") / f"{kind}-{key}"

    @contextlib.contextmanager
    def working_directory(self) -> Iterator[Path]:
        """A private folder for a build, removed when closed."""
        with self._writing():
            folder = tempfile.TemporaryDirectory(
                dir=self._folder(), prefix="build-", ignore_cleanup_errors=True
            )
        with folder:
            yield Path(folder.name)

    def _folder(self, *names: str) -> Path:
        """A folder below the root, created with parents; CacheError if others could write to it."""
        folders = _folders(self.root, *names)
        for folder in folders:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=DIRECTORY_MODE, parents=folder == self.root)
            if not is_private(folder):
                raise CacheError(
                    f"the cache directory {folder} is not a directory that you own and "
                    f"only you may write to",
                    f"run `chmod 700 {folder}` if it is yours, or {CacheError.hint}",
                )
        return folders[-1]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Errors of the file system as CacheErrors."""
        try:
            yield
        except OSError as error:
            raise unwritable(self.root, error) from error
        except ValueError as error:  # a path with a NUL in it
            raise CacheError(f"{str(self.root)!r} cannot be a directory: {error}") from error


def read_entry(
    root: Path, kind: str, key: str, owners: Collection[int] | None = None
) -> tuple[Path, bytes] | None:
    """The verified object of a key below a root, whose folders and files these users own (by
    default: the present one), or None.
    """
    folders = [*_folders(root, "objects"), *_folders(root, "entries", kind)]
    if not all(is_private(folder, owners) for folder in folders):
        return None
    text = owned_content(root / "entries" / kind / f"{key}.json", ENTRY_LIMIT, owners)
    if text is None:
        return None
    try:
        entry = json.loads(text)
        bound, digest, suffix = (entry["kind"], entry["key"]), entry["sha256"], entry["suffix"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if bound != (kind, key) or not (_matches(_DIGEST, digest) and _matches(_SUFFIX, suffix)):
        return None
    path = root / "objects" / f"{digest}{suffix}"
    content = owned_content(path, None, owners)
    if content is None or hashlib.sha256(content).hexdigest() != digest:
        return None
    return (path, content) if binding(kind, key).encode() in content else None


def _note_use(entry: Path) -> None:
    """Make the file of an entry young again, to the day: what is used is not trimmed."""
    with contextlib.suppress(OSError):  # removed meanwhile
        if time.time() - os.lstat(entry).st_mtime > DAY:
            os.utime(entry, follow_symlinks=False)


def _folders(root: Path, *names: str) -> list[Path]:
    """The root and the folders below it, in order."""
    return [root.joinpath(*names[:count]) for count in range(len(names) + 1)]


def unwritable(root: Path, error: OSError) -> CacheError:
    """The CacheError of an error of the file system under a root."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    path = error.filename2 or error.filename  # of a rename, the name that was to be
    where = f" ({path})" if path not in (None, str(root)) else ""
    return CacheError(
        f"the cache directory {root} cannot be written to: {error.strerror or error}{where}",
        f"free some space, or {CacheError.hint}" if full else "",
    )


def is_key(text: object) -> bool:
    """Whether this can be what `key_of` gave."""
    return _matches(_DIGEST, text)


def _matches(pattern: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None


def is_private(directory: Path, owners: Collection[int] | None = None) -> bool:
    """Whether a directory is one of these users' (by default: the present one's), and nobody else
    may write to it.
    """
    try:
        status = directory.lstat()
    except (OSError, ValueError):
        return False
    writable_by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and _is_owned(status, owners) and not writable_by_others


def _is_owned(status: os.stat_result, owners: Collection[int] | None) -> bool:
    return status.st_uid in ((os.geteuid(),) if owners is None else owners)


def owned_content(
    path: Path, limit: int | None = None, owners: Collection[int] | None = None
) -> bytes | None:
    """The content of a regular file that only its owner may write, the user or one of `owners`, at
    most `limit` long, or None.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO is not waited for
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(descriptor)
        owned = stat.S_ISREG(status.st_mode) and _is_owned(status, owners)
        too_long = limit is not None and status.st_size > limit
        if not owned or too_long or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
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
