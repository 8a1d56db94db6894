"""Each entry of the table matches what torch or CPython raises, and no error of another cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from flambeau_prims import error_texts
from flambeau_prims.sizes import SizeEnv
from flambeau_prims.sizes_node import to_symbolic

if TYPE_CHECKING:
    from collections.abc import Callable


class Text:
    """What C functions do not take for a str."""


def _size() -> Any:
    return to_symbolic(SizeEnv().symbol(5, "x.shape[0]"))


@pytest.mark.parametrize(
    ("entry", "provoke"),
    [
        (error_texts.SYMBOLIC_KEY_REFUSED, lambda: {_size(): 1}),
        (error_texts.ARGUMENT_TYPES_REFUSED, lambda: torch.ones(2).view("a")),
        (error_texts.HOST_MEMORY_EXHAUSTED, lambda: torch.empty(1 << 60, dtype=torch.uint8)),
        (error_texts.type_refused(Text), lambda: "".join(["a", Text()])),  # type: ignore[list-item]
    ],
)
def test_entries_match_what_is_raised(
    entry: error_texts.ErrorText, provoke: Callable[[], object]
) -> None:
    with pytest.raises(entry.error) as caught:
        provoke()
    assert entry.matches(caught.value)
    assert not entry.matches(entry.error("another cause"))
    assert not entry.matches(KeyError(str(caught.value)))
