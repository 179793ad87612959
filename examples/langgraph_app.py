"""A LangGraph app whose graph and nodes kvflow learns from the app itself.

Needs `pip install ".[langgraph]" langchain-openai` in a clone.

Usage: python examples/langgraph_app.py [http://localhost:30000]
"""

import sys
from typing import Any, NotRequired, TypedDict

import httpx
from langchain_core.tools import tool  # pyright: ignore[reportMissingImports]
from langchain_openai import ChatOpenAI  # pyright: ignore[reportMissingImports]
from langgraph.graph import END, START, StateGraph  # pyright: ignore[reportMissingImports]

import kvflow
from kvflow.integrations.langgraph import Hints

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:30000"
model = ChatOpenAI(
    model="default",
    base_url=f"{URL}/v1",
    api_key="none",  # type: ignore[arg-type]
    max_tokens=16,  # type: ignore[call-arg]
    http_client=kvflow.instrument(httpx.Client(timeout=120)),
)


class State(TypedDict):
    question: str
    notes: NotRequired[str]
    draft: NotRequired[str]
    rounds: NotRequired[int]


def ask(system: str, user: str) -> str:
    return str(model.invoke([("system", system), ("user", user)]).content)


@tool
def search(query: str) -> str:
    """Look something up."""
    return f"three results for {query!r}"


def researcher(state: State) -> dict[str, Any]:
    found = search.invoke({"query": state["question"]})  # pyright: ignore[reportFunctionMemberAccess]
    return {"notes": ask("You read search results and take notes.", found)}


def writer(state: State) -> dict[str, Any]:
    return {"draft": ask("You write the answer.", state.get("notes", "")), "rounds": state.get("rounds", 0) + 1}


def critic(state: State) -> dict[str, Any]:
    return {"notes": ask("You say what is missing.", state.get("draft", ""))}


builder = StateGraph(State)
for node in (researcher, writer, critic):
    builder.add_node(node.__name__, node)
builder.add_edge(START, "researcher")
builder.add_edge("researcher", "writer")
builder.add_conditional_edges("writer", lambda state: "critic" if state["rounds"] < 2 else END, ["critic", END])
builder.add_edge("critic", "writer")
app = builder.compile()

result = app.invoke({"question": "What is a radix tree?"}, config={"callbacks": [Hints("answering", app)]})
print(result["draft"])
