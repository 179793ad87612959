"""The drawing of a graph: boxes apart, edges complete, to the right, and around the boxes."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow.graph import END, START, AgentStepGraph, from_dict
from kvflow.report.graph_chart import Layout, arranged
from kvflow.report.layers import layered
from kvflow.report.placing import Box, spread
from kvflow.report.routes import Route

Point = tuple[float, float]


@st.composite
def graphs(draw: st.DrawFn) -> AgentStepGraph:
    """A graph every agent of which can run, with any further edges, loops and self loops among them."""
    names = [f"agent {i}" for i in range(draw(st.integers(1, 9)))]
    graph = AgentStepGraph("any")
    graph.edge(START, names[0])
    for i, name in enumerate(names[1:], start=1):
        graph.edge(names[draw(st.integers(0, i - 1))], name)
    agent = st.sampled_from(names)
    for source, target in draw(st.lists(st.tuples(agent, agent | st.just(END)), max_size=12)):
        graph.edge(source, target)
    graph.edge(draw(agent), END, probability=draw(st.none() | st.just(0.25)))
    return graph


def points(path: str) -> list[Point]:
    """Points along path data of the commands a route is made of, close to each other."""
    found: list[Point] = []
    for command, numbers in re.findall(r"([MHVLCQ])([^A-Z]*)", path):
        values = [float(number) for number in numbers.split()]
        x, y = found[-1] if found else (0.0, 0.0)
        ends = {"H": [(values[0], y)], "V": [(x, values[0])]}.get(command)
        controls = ends or list(zip(values[::2], values[1::2], strict=True))
        found += controls if command == "M" else [bezier([(x, y), *controls], i / 40) for i in range(1, 41)]
    return found


def bezier(controls: list[Point], t: float) -> Point:
    while len(controls) > 1:
        controls = [(a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t) for a, b in pairwise(controls)]
    return controls[0]


def inside(point: Point, box: Box) -> bool:
    return box.left + 0.5 < point[0] < box.right - 0.5 and box.top + 0.5 < point[1] < box.bottom - 0.5


def overlap(a: Box, b: Box) -> bool:
    return a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom


def check(layout: Layout, graph: AgentStepGraph) -> None:
    assert set(layout.boxes) == {START, *graph.agents, END}
    assert not any(overlap(a, b) for a, b in combinations(layout.boxes.values(), 2))
    drawn = set(layout.routes)
    assert set(graph.edges) <= drawn
    assert all(target == END for _, target in drawn - set(graph.edges))
    for (source, target), route in layout.routes.items():
        along = points(route.path)
        assert touches(along[0], layout.boxes[source])
        if not route.loop:
            assert layout.boxes[source].right < layout.boxes[target].left
            assert all(a[0] <= b[0] + 0.1 for a, b in pairwise(along)), "a forward edge never turns back"
        for name, box in layout.boxes.items():
            assert not any(inside(point, box) for point in along), (source, target, name)
            assert name == target or not any(inside(point, box) for point in points(route.arrow))
        assert all(0 <= x <= layout.width and layout.top <= y <= layout.bottom for x, y in along)


def touches(point: Point, box: Box) -> bool:
    return box.left - 0.1 <= point[0] <= box.right + 0.1 and box.top - 0.1 <= point[1] <= box.bottom + 0.1


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_boxes_are_apart_and_edges_go_around_them(graph: AgentStepGraph) -> None:
    check(arranged(graph), graph)


def test_the_drawing_of_a_demo_graph(document: dict[str, Any]) -> None:
    graph = from_dict(document["graph"])
    layout = arranged(graph)
    check(layout, graph)
    back = {edge for edge, route in layout.routes.items() if route.loop}
    assert back == {("reviewer", "coder"), ("debugger", "tester")}
    level = {layout.boxes[name].y for name in (START, "planner", "synthesizer", "coder", "reviewer", "tester", END)}
    assert len({round(y, 3) for y in level}) == 1, "the usual way is one straight line"


def test_columns_follow_the_longest_way_from_start() -> None:
    graph = AgentStepGraph("shortcut").chain(START, "a", "b", "c", END).edge("a", "c")
    layout = arranged(graph)
    assert layout.boxes["b"].right < layout.boxes["c"].left
    assert not any(route.loop for route in layout.routes.values())


def test_a_long_edge_passes_beside_what_it_skips() -> None:
    layout = arranged(AgentStepGraph("skip").chain(START, "a", "b", "c", END).edge("a", END))
    assert any(abs(y - layout.boxes["b"].y) > layout.boxes["b"].height / 2 for _, y in path_of(layout, "a", END))


def path_of(layout: Layout, source: str, target: str) -> list[Point]:
    return points(layout.routes[source, target].path)


def test_a_graph_without_an_edge_to_end_still_ends() -> None:
    layout = arranged(AgentStepGraph("open").chain(START, "a", "b"))
    assert ("b", END) in layout.routes


def test_a_loop_with_two_entries_leads_back_to_the_one_closer_to_start() -> None:
    #   0 -> 1 -> 2 -> 3 -> 4 is the way, 0 -> 3 another entry of the loop 3 -> 2
    assert layered([[1], [2], [3], [2, 4], []]).loops == ((3, 2),)
    assert layered([[1, 3], [2], [3], [2, 4], []]).loops == ((2, 3),)


def test_crossings_that_need_not_be_are_removed() -> None:
    columns = layered([[1, 2], [4], [3], [5], [5], []]).columns
    assert [columns[1].index(1) < columns[1].index(2)] == [columns[2].index(4) < columns[2].index(3)]


def test_parallel_arcs_take_different_lanes() -> None:
    graph = AgentStepGraph("loops").chain(START, "a", "b", "c", END).edge("b", "a").edge("c", "a").edge("c", "b")
    layout = arranged(graph)
    check(layout, graph)
    levels = [route.label[0][1] for route in layout.routes.values() if route.loop]
    assert len(levels) == 3
    assert min(abs(a - b) for a, b in combinations(levels, 2)) > 5


@pytest.mark.parametrize(
    ("wanted", "apart", "expected"),
    [
        ([0.0, 0.0], [10.0], [-5.0, 5.0]),
        ([0.0, 20.0], [10.0], [0.0, 20.0]),
        ([5.0, 0.0, 90.0], [10.0, 10.0], [-2.5, 7.5, 90.0]),
        ([7.0], [], [7.0]),
    ],
)
def test_spread_keeps_distances_and_moves_no_more_than_needed(
    wanted: list[float], apart: list[float], expected: list[float]
) -> None:
    assert spread(wanted, apart, [1.0] * len(wanted)) == expected


def test_spread_gives_the_heaviest_its_wish() -> None:
    assert spread([0.0, 0.0, 0.0], [10.0, 10.0], [1.0, 5.0, 1.0]) == [-10.0, 0.0, 10.0]
    assert spread([0.0, 0.0], [10.0], [5.0, 1.0]) == [0.0, 10.0]


def test_a_route_is_only_made_of_commands_its_reader_knows(document: dict[str, Any]) -> None:
    routes: list[Route] = list(arranged(from_dict(document["graph"])).routes.values())
    assert all(re.fullmatch(r"[MHVCLQ0-9 .-]+", route.path) for route in routes)
