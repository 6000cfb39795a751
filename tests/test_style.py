"""Files and functions stay short."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("gateway", "engine", "policies", "tenants", "telemetry", "loadgen")

MAX_FILE = {"product": 350, "tests": 500}  # lines
MAX_FUNCTION = {"product": 50, "tests": 60}


def lengths() -> Iterator[tuple[str, int, int]]:
    """(name, lines, limit) of every file and function."""
    for package in (*PRODUCT, "tests"):
        kind = "tests" if package == "tests" else "product"
        for file in sorted((ROOT / package).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            text = file.read_text()
            yield name, text.count("\n"), MAX_FILE[kind]
            for function, size in functions(ast.parse(text)):
                yield f"{name}:{function}", size, MAX_FUNCTION[kind]


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue  # most nodes are in expressions, and no function is
        inner = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{prefix}{child.name}."
            if not isinstance(child, ast.ClassDef):
                assert child.end_lineno is not None
                yield inner[:-1], child.end_lineno - child.lineno + 1
        yield from functions(child, inner)


def test_files_and_functions_are_short() -> None:
    too_long = {
        name: f"{size} lines, at most {limit}" for name, size, limit in lengths() if size > limit
    }
    assert too_long == {}
