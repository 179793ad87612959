from __future__ import annotations

import re

import pytest

from kvflow.graph import END, START, AgentStepGraph, Cursor, to_dot, to_mermaid

NASTY = ['say "hi"', "a[0]", "end", "x --> y", "two\nlines", "back\\slash", "`code`", "<b>&amp;</b>", "#35;", "{{x}}"]


def graph() -> AgentStepGraph:
    graph = AgentStepGraph("g").fan_out(START, ["a", "b"], join="j")
    return graph.edge("j", "a", probability=1 / 3)


def test_mermaid_shows_joins_branches_and_steps():
    cursor = Cursor(graph())
    cursor.start("a")
    assert to_mermaid(graph(), cursor.steps) == (
        "flowchart TD\n"
        '    n0(["START"])\n'
        '    n1["a<br/>now"]\n'
        '    n2{{"j<br/>in 2"}}\n'
        '    n3["b<br/>in 1"]\n'
        '    n4(["END<br/>never"])\n'
        "    n0 --> n1\n"
        "    n0 --> n3\n"
        "    n1 --> n2\n"
        '    n2 -. "0.333" .-> n1\n'
        "    n3 --> n2\n"
    )


def test_dot_shows_joins_branches_and_steps():
    assert to_dot(graph(), {"a": 0, "b": 1}) == (
        'digraph "g" {\n'
        "    node [shape=box];\n"
        '    n0 [label="START", shape=ellipse];\n'
        '    n1 [label="a\\nnow", shape=box];\n'
        '    n2 [label="j", shape=hexagon];\n'
        '    n3 [label="b\\nin 1", shape=box];\n'
        '    n4 [label="END", shape=ellipse];\n'
        "    n0 -> n1;\n"
        "    n0 -> n3;\n"
        "    n1 -> n2;\n"
        '    n2 -> n1 [style=dashed, label="0.333"];\n'
        "    n3 -> n2;\n"
        "}\n"
    )


@pytest.mark.parametrize("name", NASTY)
def test_mermaid_text_holds_no_character_with_a_meaning(name):
    picture = to_mermaid(AgentStepGraph(name).chain(START, name, END))
    label = re.fullmatch(r'flowchart TD\n.*\n    n1\["(.*)"\]\n.*\n    n0 --> n1\n    n1 --> n2\n', picture)
    assert label is not None
    text = re.sub(r"#(\d+);", lambda code: chr(int(code[1])), label[1].replace("<br/>", "\n"))
    assert text == name
    assert re.fullmatch(r"[\w #;-]*", label[1].replace("<br/>", ""))


@pytest.mark.parametrize("name", NASTY)
def test_dot_text_is_one_quoted_string(name):
    picture = to_dot(AgentStepGraph(name).chain(START, name, END))
    label = re.search(r'n1 \[label="((?:[^"\\\n]|\\.)*)", shape=box\];', picture)
    assert label is not None
    text = re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], label[1])
    assert text == name


def test_the_implicit_way_to_end_is_drawn():
    assert "n1 --> n2" in to_mermaid(AgentStepGraph().edge(START, "a"))
