"""Every reason of the registries is given by its example program, which behaves as in eager, and
every reason that is given is registered.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import flambeau
import flambeau_capture
from flambeau.engines.refusals import REASONS as ENGINE_REASONS
from flambeau_capture.reasons import REASONS
from flambeau_runtime.environment_errors import REASONS as ENVIRONMENT_REASONS
from tests.programs.graph_breaks import EXAMPLES, WITHOUT_EXAMPLE, Example
from tools.checks import reasons_page


def ids_given(example: Example) -> set[str]:
    """The ids of the reasons for which the program's graphs break, or run operator by operator."""
    torch.manual_seed(0)
    try:
        compiled = example.program() if example.script else flambeau.compile(example.program)
        if not example.script:
            try:
                compiled()
            except ValueError:
                assert example.raises
    except flambeau.CaptureError as error:
        assert example.script or example.raises
        return {error.reason.id}
    explanation = flambeau.explain(compiled)
    fallbacks = [graph.fallback for graph in explanation.graphs if graph.fallback is not None]
    return {reason.id for reason in explanation.breaks} | {reason.reason for reason in fallbacks}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("id", EXAMPLES)
def test_the_example_gives_the_reason(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if id in ENVIRONMENT_REASONS:  # which are raised under FLAMBEAU_CHECK
        monkeypatch.delenv("FLAMBEAU_CHECK", raising=False)
    assert id in ids_given(EXAMPLES[id])


def test_every_reason_has_an_example_or_says_why_not() -> None:
    every = REASONS.keys() | reasons_page.eager_reasons().keys()
    every |= ENGINE_REASONS.keys() | ENVIRONMENT_REASONS.keys()
    assert every == EXAMPLES.keys() | WITHOUT_EXAMPLE.keys()
    assert not EXAMPLES.keys() & WITHOUT_EXAMPLE.keys()


def test_every_reason_that_is_given_is_registered() -> None:
    package = Path(flambeau_capture.__file__).parent
    given = re.compile(r'Break\(\s*"([a-z0-9-]+)"')
    for file in package.rglob("*.py"):
        for id in given.findall(file.read_text()):
            assert id in REASONS, f"{file}: {id}"


def test_the_page_is_current() -> None:
    reasons_page.check()


def test_the_page_shows_each_example() -> None:
    page = reasons_page.page()
    for id, example in EXAMPLES.items():
        section = page.partition(f"\n### {id}\n")[2].partition("\n### ")[0]
        assert f"def {example.program.__name__}(" in section, id
        compile(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0], id, "exec")


def test_hints_are_sentences() -> None:
    texts: list[Any] = [
        text
        for reason in REASONS.values()
        for text in (reason.context, reason.explanation, reason.hint)
    ]
    assert all(text and not text.endswith(".") for text in texts)
