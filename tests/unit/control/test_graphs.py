"""Which workflow types are remembered."""

from __future__ import annotations

import pytest

from kvflow.control import GraphBook
from kvflow.errors import GraphError


def run(book: GraphBook, workflow_type: str, workflow_id: str) -> None:
    for agent in ("plan", "code"):
        learner = book.learner(workflow_type)
        assert learner is not None
        learner.start(workflow_id, agent)
    learner.finish(workflow_id)


def test_types_that_come_once_do_not_push_out_one_that_comes_again() -> None:
    book = GraphBook(max_types=8)
    run(book, "known", "a")
    run(book, "known", "b")
    for index in range(100):
        run(book, f"question {index}", str(index))
    assert book.find("known") is not None
    assert len(book.types()) == 8


def test_types_that_come_again_leave_room_for_new_ones() -> None:
    book = GraphBook(max_types=8)
    for index in range(20):
        run(book, f"old {index}", f"{index}a")
        run(book, f"old {index}", f"{index}b")
    run(book, "new", "a")
    run(book, "beside", "a")  # before the other has had its second run
    run(book, "new", "b")
    assert book.find("new") is not None
    assert "old 19" in book.types()
    assert "old 13" not in book.types()


@pytest.mark.parametrize("name", ["", "x" * 129, "\ud800"])
def test_a_graph_of_a_type_that_no_fact_may_name_is_refused(name: str) -> None:
    book = GraphBook()
    with pytest.raises(GraphError, match=r"workflow type .*: .*; call it as the facts do") as caught:
        book.declare(name, {"edges": [["START", "a"]]})
    assert len(str(caught.value).encode()) < 250
    assert book.types() == []
