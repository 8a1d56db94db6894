"""A cache directory stays bounded: what was not used goes, once a day."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from flambeau_runtime import cache_trimming
from flambeau_runtime.cache import DAY, Cache, binding
from flambeau_runtime.cache_contents import entries_of

if TYPE_CHECKING:
    from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Three entries of about 1000 bytes: unused for 90, 3 and 0 days."""
    monkeypatch.setattr(cache_trimming, "_seen", set())
    cache = Cache(tmp_path / "cache")
    for key, days in (("old", 90), ("middle", 3), ("new", 0)):
        content = binding("graph", key).encode().ljust(1000)
        cache.store("graph", key, content, ".json")
        _age(cache, key, days)
    return cache


def _entry(cache: Cache, key: str) -> Path:
    return cache.root / "entries" / "graph" / f"{key}.json"


def _age(cache: Cache, key: str, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(_entry(cache, key), (then, then))


def _trimmed(cache: Cache, limit: int) -> list[str] | None:
    thread = cache_trimming.trim_if_due(cache.root, limit)
    if thread is None:
        return None
    thread.join()
    return [entry.key for entry in entries_of(cache.root)]


def test_what_is_long_unused_goes(cache: Cache) -> None:
    assert _trimmed(cache, 1 << 30) == ["middle", "new"]


def test_the_oldest_go_above_the_limit(cache: Cache) -> None:
    assert _trimmed(cache, 1500) == ["new"]


def test_without_a_limit_nothing_goes(cache: Cache) -> None:
    assert _trimmed(cache, 0) is None
    assert cache.read("graph", "old") is not None


def test_reading_makes_young(cache: Cache) -> None:
    assert cache.read("graph", "old") is not None
    kept = _trimmed(cache, 1 << 30)
    assert kept is not None and sorted(kept) == ["middle", "new", "old"]
    assert time.time() - _entry(cache, "old").stat().st_mtime < DAY


def test_once_a_day(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _trimmed(cache, 1 << 30) is not None
    assert _trimmed(cache, 1) is None  # this process has looked
    monkeypatch.setattr(cache_trimming, "_seen", set())
    assert _trimmed(cache, 1) is None  # another one did today
    then = time.time() - 2 * DAY
    os.utime(cache.root / "trimmed", (then, then))
    monkeypatch.setattr(cache_trimming, "_seen", set())
    assert _trimmed(cache, 1) == []


def test_a_directory_of_others_is_left_alone(cache: Cache) -> None:
    cache.root.chmod(0o777)
    assert _trimmed(cache, 1) is None
    cache.root.chmod(0o700)
    assert len(entries_of(cache.root)) == 3
