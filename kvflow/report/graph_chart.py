"""The agent step graph as a drawing."""

from __future__ import annotations

from dataclasses import dataclass

from kvflow.errors import GraphError
from kvflow.graph import END, START, AgentStepGraph, Join, steps_to_execution
from kvflow.report.amounts import percent
from kvflow.report.layers import Link, layered
from kvflow.report.placing import Box, placed
from kvflow.report.result import Result
from kvflow.report.routes import Point, Route, routed
from kvflow.report.sections import Figure, Group, Key, Section
from kvflow.report.svg import Element, chart, shortened, tag, text_width, tooltip

NODE_HEIGHT = 44.0
NAME_SIZE = 13.0
NAME_WIDTH = 150.0
MARGIN = 10.0
RARE = 0.05
"""What an edge that is never taken still counts when the ones taken more often are drawn straighter."""
MAX_DRAWN_AGENTS = 80
MAX_DRAWN_EDGES = 400
"""Beyond these a drawing shows nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything of a graph is drawn; nothing reaches beyond 0 to ``width`` and ``top`` to ``bottom``."""

    boxes: dict[str, Box]
    routes: dict[tuple[str, str], Route]
    width: float
    top: float
    bottom: float


def section(result: Result) -> Section:
    """Draw the graph of a result."""
    title = "What can run when"
    try:
        graph = result.step_graph()
    except GraphError as error:
        return Section(name="graph", title=title, note=f"no data: {error}")
    if len(graph) > MAX_DRAWN_AGENTS or len(graph.edges) > MAX_DRAWN_EDGES:
        size = f"{len(graph)} agents and {len(graph.edges)} edges"
        return Section(name="graph", title=title, note=f"{size} are too many to draw; kvflow graph draw still can")
    return Section(
        name="graph",
        title=title,
        lead=f"The agent step graph “{graph.name}”. A step number is the earliest at which the agent can run.",
        legend=(
            Key(style="edge", label="always follows", shape="line"),
            Key(style="edge", label="one of several branches, with its probability", shape="dashes"),
            Key(style="loop", label="leads back", shape="line"),
            Key(style="join", label="waits for all that lead to it", shape="bar"),
        ),
        groups=(Group(figures=(Figure(chart=_drawing(graph)),)),),
    )


def arranged(graph: AgentStepGraph) -> Layout:
    """Lay a graph out from START on the left to END on the right."""
    flow = graph.flow
    layering = layered(flow.successors)
    pulls = {(u, v): probability + RARE for u, branches in enumerate(flow.alternatives) for v, probability in branches}
    placing = placed(layering, [_width(name, graph) for name in flow.names], NODE_HEIGHT, pulls)
    routes = routed(layering, placing)
    nodes = [placing.boxes[i] for i in range(len(flow.names))]
    levels = [y for route in routes.values() for _, y in route.label] + [box.y for box in placing.boxes.values()]
    return Layout(
        boxes=dict(zip(flow.names, nodes, strict=True)),
        routes={_named(link, flow.names): route for link, route in routes.items()},
        width=max(box.right for box in nodes),
        top=min(min(levels) - MARGIN, *(box.top for box in nodes)),
        bottom=max(max(levels) + MARGIN, *(box.bottom for box in nodes)),
    )


def _named(link: Link, names: tuple[str, ...]) -> tuple[str, str]:
    return names[link[0]], names[link[1]]


def _width(name: str, graph: AgentStepGraph) -> float:
    if name in (START, END):
        return 60.0
    least = 116.0 if graph.join(name) is Join.ALL else 88.0
    return min(max(text_width(name, NAME_SIZE) + 26, least), NAME_WIDTH + 26)


def _drawing(graph: AgentStepGraph) -> Element:
    layout = arranged(graph)
    steps = steps_to_execution(graph, [START])
    labels = _Labels()
    edges = [_edge(edge, route, graph, labels) for edge, route in layout.routes.items()]
    nodes = [_node(name, box, graph, steps) for name, box in layout.boxes.items()]
    width, height = layout.width + 2 * MARGIN, layout.bottom - layout.top + 2 * MARGIN
    return chart(
        tag("g", *edges, *labels.elements, *nodes, transform=f"translate({MARGIN} {MARGIN - layout.top:.1f})"),
        name="graph-drawing",
        title=f"Agent step graph {graph.name}",
        description=f"{len(graph)} agents and {len(layout.routes)} edges from START on the left to END on the right; "
        f"{sum(route.loop for route in layout.routes.values())} of the edges lead back.",
        width=width,
        height=height,
        class_="natural",
        style=f"--natural:{width:.0f}px",
    )


def _edge(edge: tuple[str, str], route: Route, graph: AgentStepGraph, labels: _Labels) -> Element:
    source, target = edge
    branch = target in graph.alternatives(source)
    probability = graph.probability(source, target) if branch else None
    if probability is not None:
        labels.add(percent(probability), route.label)
    class_ = " ".join(["edge", *["branch"] * branch, *["loop"] * route.loop])
    return tag(
        "g",
        tooltip(f"{source} → {target}" + ("" if probability is None else f", in {percent(probability)} of the cases")),
        tag("path", d=route.path, class_="line"),
        tag("path", d=route.arrow, class_="head"),
        class_=class_,
    )


def _node(name: str, box: Box, graph: AgentStepGraph, steps: dict[str, int | None]) -> Element:
    frame = {"x": box.left, "y": box.top, "width": box.width, "height": box.height}
    if name in (START, END):
        pill = frame | {"y": box.y - 14, "height": 28.0, "rx": 14.0}
        return tag("g", tag("rect", **pill), tag("text", name, x=box.x, y=box.y + 4, class_="mid"), class_="node ends")
    joins = graph.join(name) is Join.ALL
    caption = f"step {steps[name]}"
    hint = f"{name}: earliest at step {steps[name]}" + (", waits for all that lead to it" if joins else "")
    bar = [tag("rect", x=box.left, y=box.top, width=6, height=box.height, rx=3, class_="join")] if joins else []
    middle = box.x + 3 * joins
    return tag(
        "g",
        tooltip(hint),
        tag("rect", **frame, rx=7),
        *bar,
        tag("text", shortened(name, NAME_SIZE, NAME_WIDTH), x=middle, y=box.y - 2, class_="name mid"),
        tag("text", caption + (", joins all" if joins else ""), x=middle, y=box.y + 14, class_="tick mid"),
        class_="node",
    )


class _Labels:
    """Labels set so far; a new one takes the first of its places where it covers none of them."""

    def __init__(self) -> None:
        self.elements: list[Element] = []
        self._taken: list[Point] = []

    def add(self, text: str, places: tuple[Point, ...]) -> None:
        x, y = next((place for place in places if self._is_free(place)), places[0])
        self._taken.append((x, y))
        self.elements.append(tag("text", text, x=x, y=y + 4, class_="label mid"))

    def _is_free(self, place: Point) -> bool:
        return all(abs(place[0] - x) > 34 or abs(place[1] - y) > 13 for x, y in self._taken)
