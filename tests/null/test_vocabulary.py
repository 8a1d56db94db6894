"""The vocabulary check finds each term that its table names, and nothing in plain text."""

from __future__ import annotations

import pytest

from tools.checks import vocabulary

PATH = "packages/capture/src/flambeau_capture/interpreter/exit/example.py"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("manner = 1\n", "manner"),
        ("def f(origin): return origin\n", "origin"),
        ('"""A shadow is made."""\n', "A shadow"),
        ("x = 1  # what was refuted\n", "refuted"),
        ('def f():\n    """Its\n    overlay."""\n', "overlay"),
        ("effects = []\n", "effects"),
    ],
)
def test_a_term_is_found_where_it_stands(text: str, word: str) -> None:
    found = vocabulary.violations(PATH, text, vocabulary.read_table())
    assert found
    assert all(item.startswith(PATH) for item in found)
    assert any(word.split()[-1] in item for item in found)


def test_data_and_standard_terms_are_not_refused() -> None:
    text = '"""Guards of a source."""\nname = "manner"\nside_effects = [name]\n'
    assert vocabulary.violations(PATH, text, vocabulary.read_table()) == []


def test_a_term_holds_only_where_it_says() -> None:
    terms = vocabulary.read_table()
    assert vocabulary.violations("packages/inductor/src/a.py", "stretch = 1\n", terms)
    assert not vocabulary.violations("packages/prims/src/a.py", "stretch = 1\n", terms)


def test_an_entry_without_a_replacement_is_an_error(tmp_path) -> None:
    table = tmp_path / "table.toml"
    table.write_text('[[term]]\nnames = "x"\n')
    with pytest.raises(ValueError, match="needs `use`"):
        vocabulary.read_table(table)
