"""Random programs of control flow do what plain Python does; `python -m tools.fuzz control-flow`
runs more of them.
"""

from __future__ import annotations

import pytest

from tools.fuzz.control_flow import difference


@pytest.mark.parametrize(("first", "dynamic"), [(50, None), (122, None), (140, True)])
def test_random_programs(first: int, dynamic: bool | None) -> None:
    """Among them are three that differed where a vjp draws or writes in place."""
    texts = [
        difference(seed, dynamic=dynamic, backend="aot_eager") for seed in range(first, first + 5)
    ]
    found = [text for text in texts if text is not None]
    assert not found, "\n\n".join(found)
