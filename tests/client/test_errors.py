"""Messages of client errors, which every face shows, and hints of the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.cli.hints import error_text, rejection_text
from kbroker.client.errors import ClientError, NoSuchPartition, NoSuchUser, next_action
from kbroker.protocol.errors import ErrorCode

CLIENT = Path(__file__).parents[2] / "kbroker/client"
# A command or an option of the command line.
COMMAND_LINE = re.compile(r"`kbroker (?!serve)|(?<![\w-])--?[a-z][a-z-]*\b(?= |`|$)")
# Actions of `cluster_problems` for operators of the brokers.
OPERATORS = ("kbroker topic trim", "kbroker log repair", "--election-type")


def texts_outside_hints(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module, except docstrings and values of `hint`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            skipped |= set(ast.walk(node.value))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.lineno, node.value


def test_messages_of_client_errors_name_no_command_line() -> None:
    """The console and pytest show the messages too, and have no command line."""
    found = [
        f"{path.name}:{line}: {text}"
        for path in sorted(CLIENT.glob("*.py"))
        for line, text in texts_outside_hints(path)
        if COMMAND_LINE.search(text) and not any(each in text for each in OPERATORS)
    ]
    assert found == []


def test_next_actions_name_no_command_line() -> None:
    actions = [next_action(code) for code in ErrorCode]
    assert len([each for each in actions if each]) > 10
    assert [each for each in actions if each and COMMAND_LINE.search(each)] == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ClientError("it failed"), "it failed"),
        (ClientError("it failed", hint="retry"), "it failed; retry"),
        (ClientError("did you mean 'a'?", hint="list all"), "did you mean 'a'? list all"),
        (ClientError("unknown.", hint="list all"), "unknown. list all"),
    ],
)
def test_command_line_adds_hint_to_message(error: ClientError, text: str) -> None:
    assert error_text(error) == text


def test_facts_of_errors_are_apart_from_hints() -> None:
    assert str(NoSuchPartition("t", 7, 2)) == "t has no partition 7, it has 2"
    assert "-p -1" in error_text(NoSuchPartition("t", 7, 2))
    assert "kbroker" not in str(NoSuchUser("alice"))


def test_command_line_prefers_its_own_hint_for_error_code() -> None:
    assert "`kbroker cluster health`" in rejection_text(ErrorCode.REQUEST_TIMED_OUT, None)
    assert rejection_text(ErrorCode.SECURITY_DISABLED, "No authorizer.") == (
        "No authorizer; this cluster has no authorizer: every client may do everything"
    )
    assert rejection_text(ErrorCode.UNKNOWN_SERVER_ERROR, "x") == "x"
