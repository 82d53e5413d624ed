"""Loops over the arrays of requests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kbroker.handlers

HANDLERS = Path(kbroker.handlers.__file__).parent
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def is_asynchronous(node: ast.AST) -> bool:
    """Return True if a loop, or a part of it, pauses between its items."""
    return any(
        isinstance(each, ast.AsyncFor) or (isinstance(each, ast.comprehension) and each.is_async)
        for each in ast.walk(node)
    )


def blocking_loops(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of loops without pauses around loops with pauses, or over awaited rows."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and any(map(is_asynchronous, node.body)):
            yield node.lineno
        elif isinstance(node, _COMPREHENSIONS) and not all(e.is_async for e in node.generators):
            inner = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            rows = [each.iter for each in node.generators if not each.is_async]
            if any(map(is_asynchronous, inner)) or any(isinstance(e, ast.Await) for e in rows):
                yield node.lineno


def test_loop_over_rows_with_paused_inner_loop_pauses_too() -> None:
    """If the inner arrays are empty, a loop that pauses only in them never pauses."""
    found = [
        f"{path.name}:{line}"
        for path in sorted(HANDLERS.glob("*.py"))
        for line in blocking_loops(ast.parse(path.read_text()))
    ]
    assert found == []


def test_loop_without_pauses_is_found() -> None:
    bad = "async def f():\n  for a in b:\n    async for c in d: pass\n  [[e async for e in g] for g in h]\n  [i for i in await j]"
    assert sorted(blocking_loops(ast.parse(bad))) == [2, 4, 5]
    good = (
        bad.replace("  for", "  async for")
        .replace(" for g", " async for g")
        .replace("for i", "async for i")
    )
    assert not list(blocking_loops(ast.parse(good)))
