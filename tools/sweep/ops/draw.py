"""What torch's operator tests draw for an operator: samples, and inputs that it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable


def draw(inputs: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """`op.sample_inputs(...)` or `op.error_inputs(...)`. Each looks for a `unittest.TestCase` on
    the stack: there is none, and the search costs more than most samples do.
    """
    from torch.testing._internal import common_utils  # heavy; who has an operator has it

    with mock.patch.object(common_utils, "extract_test_fn", lambda: None):
        return inputs(*arguments, **options)
