"""Small LangGraph apps whose nodes note who is current."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

import kvflow


class State(TypedDict, total=False):
    seen: Annotated[list[Any], lambda old, new: old + new]


def seen(state: State) -> State:
    return {"seen": [kvflow.current()]}


async def seen_async(state: State) -> State:
    await asyncio.sleep(0.01)
    return {"seen": [kvflow.current()]}


def app(node: Any = seen) -> Any:
    """x, then y and z at once, then w, which may begin again."""
    builder = StateGraph(State)
    for name in "xyzw":
        builder.add_node(name, node)
    builder.add_edge(START, "x")
    for name in "yz":
        builder.add_edge("x", name)
        builder.add_edge(name, "w")
    builder.add_conditional_edges("w", lambda state: END if len(state["seen"]) > 6 else "x", ["x", END])
    return builder.compile()
