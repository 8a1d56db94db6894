"""The modes of a thread that a trace reads besides its arguments."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class TracedModes:
    """Autocast and the default dtype: a program is traced, or runs, again as it was at first."""

    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool
    dtype: torch.dtype

    @classmethod
    def current(cls) -> TracedModes:
        """The modes of this thread."""
        return cls(
            tuple(
                (name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name))
                for name in ("cpu", "cuda")
            ),
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
        )

    def enter(self) -> None:
        """Set them in this thread."""
        for name, enabled, dtype in self.autocast:
            torch.set_autocast_enabled(name, enabled)
            torch.set_autocast_dtype(name, dtype)
        torch.set_autocast_cache_enabled(self.cache)
        torch.set_default_dtype(self.dtype)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """These modes, for a block."""
        before = TracedModes.current()
        self.enter()
        try:
            yield
        finally:
            before.enter()
