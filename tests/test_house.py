"""House rules that a tool can check."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import kvflow

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kvflow"
MODULES = sorted(PACKAGE.rglob("*.py"))
PURE = ("engine", "policy", "predict", "graph", "hints")


def test_the_facade_is_sorted_and_everything_in_it_exists() -> None:
    constants = [name for name in kvflow.__all__ if name.isupper()]
    classes = [name for name in kvflow.__all__ if name[0].isupper() and not name.isupper()]
    others = [name for name in kvflow.__all__ if not name[0].isupper()]
    assert kvflow.__all__ == [*sorted(constants), *sorted(classes), *sorted(others)]
    for name in kvflow.__all__:
        assert getattr(kvflow, name) is not None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_are_small_and_say_what_they_are_for(path: Path) -> None:
    source = path.read_text()
    assert len(source.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(source)), "no module docstring"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_stay_under_fifty_lines(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert length <= 50, f"{node.name} has {length} lines"


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if path.relative_to(PACKAGE).parts[0] in PURE],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_what_decides_has_no_clock_no_chance_and_no_environment(path: Path) -> None:
    forbidden = {"time", "random", "os", "secrets", "datetime"}
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not forbidden & {name.split(".")[0] for name in names}


def test_every_package_says_its_duty() -> None:
    for package in {path.parent for path in MODULES}:
        docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
        assert docstring, f"{package} has no docstring"


def test_generated_pages_are_current() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import generate
    finally:
        sys.path.pop(0)
    for name, text in generate.pages().items():
        assert (ROOT / "docs" / name).read_text() == text, f"run python docs/generate.py: docs/{name} is stale"


def test_the_client_names_start_and_end_as_the_graph_does() -> None:
    from kvflow import graph
    from kvflow.client import scopes

    assert (scopes.START, scopes.END) == (graph.START, graph.END)


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "engine").glob("*.py")), ids=lambda path: path.name)
def test_tests_of_the_engine_leave_the_http_server_to_servers(path: Path) -> None:
    """What SGLang's brings along has a process crash when it ends, after all tests have passed."""
    imported = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
    assert not imported & {"kvflow.patches.http", "sglang.srt.entrypoints.http_server"}
