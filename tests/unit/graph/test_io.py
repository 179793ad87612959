from __future__ import annotations

import json

import pytest

from kvflow.errors import BadProbabilityError, GraphError, UnreachableEndError
from kvflow.graph import (
    END,
    START,
    AgentStepGraph,
    dumps_json,
    dumps_yaml,
    from_dict,
    load,
    loads_json,
    loads_yaml,
    to_dict,
)

YAML = """\
name: code_review
agents:
  planner:
  security: {}
  style: {}
  critic: {join: all, fixed_prompt_tokens: 1200}
edges:
  - [START, planner]
  - [planner, security]
  - [planner, style]
  - [security, critic]
  - [style, critic]
  - {from: critic, to: planner, probability: 0.3}
  - {from: critic, to: END, probability: 0.7}
"""


def review() -> AgentStepGraph:
    graph = AgentStepGraph("code_review").edge(START, "planner")
    graph.fan_out("planner", ["security", "style"], join="critic").agent("critic", fixed_prompt_tokens=1200)
    return graph.edge("critic", "planner", probability=0.3).edge("critic", END, probability=0.7)


def test_the_documented_format_is_read():
    assert loads_yaml(YAML) == review()


def test_the_document_says_only_what_is_not_default():
    document = to_dict(AgentStepGraph("g").edge(START, "a").edge("a", "b", probability=1))
    assert document == {
        "name": "g",
        "agents": {"a": {}, "b": {}},
        "edges": [[START, "a"], {"from": "a", "to": "b", "probability": 1.0}],
    }
    assert from_dict({"edges": [[START, "a"]]}) == AgentStepGraph().edge(START, "a")


@pytest.mark.parametrize(("suffix", "dumps"), [(".json", dumps_json), (".yaml", dumps_yaml), (".YML", dumps_yaml)])
def test_files_are_read_by_suffix(tmp_path, suffix, dumps):
    path = tmp_path / f"graph{suffix}"
    path.write_text(dumps(review()), encoding="utf-8")
    assert load(path) == load(str(path)) == review()


def test_errors_of_a_file_name_it_and_keep_their_class(tmp_path):
    path = tmp_path / "graph.yaml"
    path.write_text("edges: [[START, a], [a, a]]")
    with pytest.raises(UnreachableEndError, match=r"graph\.yaml: "):
        load(path)
    path.write_bytes(b"\xff")
    with pytest.raises(GraphError, match="not UTF-8"):
        load(path)
    with pytest.raises(GraphError, match=r"ends in \.json, \.yaml, \.yml"):
        load(tmp_path / "graph.txt")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "x" * 129}, r"name: .*at most 128 characters; docs/hints\.md has the format"),
        ({"name": ""}, "name: .*at least 1 character"),
        ({"name": "\ud800"}, "name: .*valid string"),
        ({"edges": None}, "edges: Input should be a valid list"),
        ({"colour": "red"}, "colour: Extra inputs"),
        ({"agents": {"a": {"joins": "all"}}}, r"agents\.a\.joins: Extra inputs"),
        ({"agents": {"a": {"join": "some"}}}, r"agents\.a\.join: Input should be 'any' or 'all'"),
        ({"agents": {"a": {"fixed_prompt_tokens": 10**30}}}, r"agents\.a\.fixed_prompt_tokens: .*less"),
        ({"agents": {"a": {"fixed_prompt_tokens": "9"}}}, r"agents\.a\.fixed_prompt_tokens: .*integer"),
        ({"agents": {str(i): {} for i in range(257)}}, "agents: .*at most 256"),
        ({"edges": [[START, "a"]] * 4097}, "edges: .*at most 4096"),
        ({"edges": [[START, "a", "b"]]}, r"edges\.0\.probability: Input should be a valid number"),
        ({"edges": [[START, "a", 0.5, 1]]}, r"edges\.0: "),
        ({"edges": [[START, 1]]}, r"edges\.0\.to: Input should be a valid string"),
        ({"edges": [{"from": START}]}, r"edges\.0\.to: Field required"),
        (
            {"edges": [{"from": START, "to": "a", "probability": 2}]},
            r"edges\.0\.probability: .*less than or equal to 1",
        ),
        ({"edges": [{"from": START, "to": "a", "probability": float("nan")}]}, r"edges\.0\.probability"),
        ({"edges": [[START, "a"], ["a", "b"]]}, r"edges\.1: agent 'b' is not declared"),
        ({"edges": [[START, "a"], [START, "a"]]}, r"edges\.1: 'START' -> 'a' is there twice"),
        ({"edges": [["a", START]]}, "nothing precedes START"),
        ({"agents": {START: {}}}, "reserved"),
        ({"agents": {"a": {}, "b": {}}}, "'b' can never run"),
    ],
)
def test_a_bad_document_is_refused_with_the_place(change, message):
    with pytest.raises(GraphError, match=message):
        from_dict({"name": "g", "agents": {"a": {}}, "edges": [[START, "a"]]} | change)


def test_a_document_is_validated_as_a_graph():
    edges = [[START, "a"], *({"from": "a", "to": to, "probability": 0.7} for to in "bc")]
    with pytest.raises(BadProbabilityError):
        from_dict({"edges": edges})


@pytest.mark.parametrize("text", ["{", "[1, 2]", "null", "[" * 3_000, " " * (1 << 20) + "{}"])
def test_text_that_is_no_document_is_refused(text):
    for loads in (loads_json, loads_yaml):
        with pytest.raises(GraphError, match="graph document: "):
            loads(text)


def test_words_that_yaml_takes_for_something_else_survive():
    graph = AgentStepGraph("on").chain(START, "yes", "1", "null", "a: b", "~", END)
    assert loads_yaml(dumps_yaml(graph)) == graph
    with pytest.raises(GraphError, match=r"edges\.0\.to"):
        loads_yaml("edges: [[START, yes]]")


def test_names_stay_readable():
    graph = AgentStepGraph("g").edge(START, "плановик")
    assert "плановик" in dumps_yaml(graph)
    assert "плановик" in dumps_json(graph)
    assert json.loads(dumps_json(graph)) == to_dict(graph)
