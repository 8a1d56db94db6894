"""Entries that a dict lacks: the `__missing__` of the program is interpreted."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_harness import run_graph

import flambeau_capture
from flambeau_capture.sources import Constant, DictEntry, DictEntryOf

COUNT = [0]


class Counted(dict[str, Any]):
    def __missing__(self, key: str) -> int:
        COUNT[0] += 1
        return COUNT[0]


class Doubled(Counted):
    def __getitem__(self, key: str) -> int:
        return 2 * int(super().__getitem__(key))


class Kept(collections.OrderedDict[str, Any]):
    def __missing__(self, key: str) -> int:
        COUNT[0] += 1
        self[key] = COUNT[0]
        return COUNT[0]


class Default(collections.defaultdict[str, Any]):
    def __missing__(self, key: str) -> int:
        COUNT[0] += 1
        self[key] = COUNT[0] * 2
        return COUNT[0]


READS: list[Callable[[torch.Tensor, Any], Any]] = [
    lambda x, d: x + d["a"],
    lambda x, d: x + d["a"] + d.get("z", 5),
    lambda x, d: x + dict.__getitem__(d, "a"),
    lambda x, d: x + d.__getitem__("a") + len(d),
    lambda x, d: (x, operator.mod("%(a)s", d)),
    lambda x, d: (x, "{a} {a}".format_map(d)),
]


@pytest.mark.parametrize("cls", [Counted, Doubled, Kept, Default])
@pytest.mark.parametrize("read", READS)
def test_missing_entries_are_those_of_each_call(cls: Any, read: Callable[..., Any]) -> None:
    compiled = flambeau_capture.compile(read, backend=run_graph)
    for start in (0, 0, 1, 2):
        outcomes = []
        for function in (compiled, read):
            COUNT[0] = start
            mapping = cls()
            outcomes.append((str(function(torch.zeros(3), mapping)), COUNT[0], dict(mapping)))
        assert outcomes[0] == outcomes[1]


def test_sources_add_no_entry() -> None:
    mapping: Any = collections.defaultdict(list)
    for source in (DictEntry(Constant(mapping), "a"), DictEntryOf(Constant(mapping), Constant(1))):
        with pytest.raises(KeyError):
            source.read(*[parent.value for parent in source.parents()])  # type: ignore[attr-defined]
    assert not mapping
