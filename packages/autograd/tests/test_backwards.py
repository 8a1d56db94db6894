"""The table of backwards, by the results that have no tangent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from flambeau_autograd.backwards import LIMIT, Backward, BackwardTable

USUAL = frozenset()


class Table(BackwardTable):
    """Counts what calls have to make."""

    def __init__(self, results):
        super().__init__(frozenset(range(results)))
        self.made = []

    def _make(self, missing):
        self.made.append(missing)
        return Backward(lambda *args: list(args), (), self._tangents - missing)


def test_each_set_of_missing_tangents_has_a_backward_that_is_made_once():
    table = Table(2)
    assert table.without(frozenset({0})).tangents == {1}
    assert table.without(frozenset({0, 7})).tangents == {1}  # nothing reads the tangent of 7
    assert table.without(USUAL).tangents == {0, 1}
    assert table.without(USUAL) is table.without(frozenset({7}))
    assert table.made == [{0}, USUAL]


def test_threads_that_need_one_backward_get_the_same():
    table = Table(3)
    with ThreadPoolExecutor(8) as threads:
        found = set(map(id, threads.map(table.without, [frozenset({1})] * 64)))
    assert len(found) == 1
    assert table.made == [{1}]


def test_a_full_table_gives_the_general_backward():
    table = Table(LIMIT + 2)
    for result in range(LIMIT):
        assert result not in table.without(frozenset({result})).tangents
    assert table.without(frozenset({LIMIT})) is table.without(USUAL)
    assert len(table.made) == LIMIT + 1
