"""In which order the runs of spliced prompts are computed."""

from __future__ import annotations

from kvflow.patches.splicing import rounds
from kvflow.reuse import Graft, cut

FIRST = cut([Graft(start=10, end=30), Graft(start=40, end=60)], 0, 80)
SECOND = cut([Graft(start=5, end=25)], 5, 30)
REPAIRS = {0: [[(12, 14), (20, 21)], [(40, 41)]], 2: [[(24, 25)]]}


def test_all_at_once_where_runs_see_each_other() -> None:
    assert rounds([FIRST, None, SECOND], {}, together=True) == [[(0, 0, 10), (0, 30, 40)]]
    repaired = rounds([FIRST, None, SECOND], REPAIRS, together=True)
    expected = [(0, 0, 10), (0, 12, 14), (0, 20, 21), (0, 30, 41), (2, 24, 25)]
    assert repaired == [expected], "runs side by side are one, and no token is computed that was not chosen"


def test_part_after_part_where_they_do_not() -> None:
    assert rounds([FIRST, None, SECOND], REPAIRS, together=False) == [
        [(0, 0, 10), (2, 24, 25)],
        [(0, 12, 14), (0, 20, 21)],
        [(0, 30, 40)],
        [(0, 40, 41)],
    ]


def test_nothing_to_compute_before_the_rest_takes_no_pass() -> None:
    for together in (True, False):
        assert rounds([None, SECOND], {}, together=together) == []
        assert rounds([], {}, together=together) == []
