"""Output and files with locales whose encoding lacks characters."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import trio

from kbroker.broker import Broker
from kbroker.text.printable import accept_all_characters

from ..commands import Cli

ROOT = Path(__file__).parents[2]
SOURCES = [
    each
    for directory in ("kbroker", "storage", "coordinator", "protocol")
    for each in sorted((ROOT / directory).rglob("*.py"))
    if "templates/files" not in each.as_posix()
]
SNOWMAN = "h\u00e9llo \u2603"
LOCALES = {
    "POSIX": {"LC_ALL": "POSIX", "PYTHONUTF8": "0"},
    "latin-1": {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
}
RUN_ALL = """
import sys
import click
from kbroker.cli import main

def walk(command, words):
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), [*words, name])

asked = [line.split("\\t") for line in sys.argv[1:]] or [
    [*words, "--help"] for words in walk(main, [])
]
for words in asked:
    main(words, standalone_mode=False)
    print(f"\\u2603 done: {' '.join(words)}")
"""


def run_in(locale: Mapping[str, str], *commands: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run commands in one process; without commands, print the help of all commands."""
    lines = ["\t".join(each) for each in commands]
    return subprocess.run(
        [sys.executable, "-c", RUN_ALL, *lines],
        env={**os.environ, "NO_COLOR": "1", **locale},
        cwd=ROOT,
        capture_output=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("locale", LOCALES)
def test_help_of_every_command_is_printed_in_any_locale(locale: str) -> None:
    done = run_in(LOCALES[locale])
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert done.stdout.count(b"\\u2603 done: ") > 60


@pytest.mark.slow
@pytest.mark.parametrize("locale", LOCALES)
async def test_results_are_printed_in_any_locale(locale: str, cli: Cli, broker: Broker) -> None:
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", SNOWMAN)
    commands = [
        ["topic", "consume", "t", "-o", ":end"],
        ["topic", "list"],
        ["topic", "describe", "t"],
        ["cluster", "info"],
        ["cluster", "health"],
        ["config", "explain", "log.retention.ms"],
        ["config", "show"],
        ["compat", "kafka-topics", "--list"],
        ["completion", "bash"],
    ]
    done = await trio.to_thread.run_sync(lambda: run_in(LOCALES[locale], *commands))
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert done.stdout.count(b"done: ") == len(commands)


@pytest.mark.slow
@pytest.mark.parametrize("locale", LOCALES)
def test_server_starts_in_any_locale(locale: str, tmp_path: Path) -> None:
    directory = tmp_path / "d\u00e4ta \u2603"
    command = [
        sys.executable,
        "-m",
        "kbroker",
        "serve",
        "--port",
        "0",
        "--data-dir",
        str(directory),
    ]
    process = subprocess.Popen(
        [*command, "--audit-log", str(tmp_path / "audit")],
        env={**os.environ, **LOCALES[locale]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if b"ready" in line), None)
        assert ready is not None, process.communicate()[1].decode(errors="replace")
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 0


def test_replaced_output_streams_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have replaced or closed its standard output."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", object())
    accept_all_characters()


@pytest.mark.slow
def test_text_files_and_pipes_are_opened_with_encoding() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)[:100]}"
        for path in SOURCES
        for call in _calls(path)
        if _depends_on_locale(call)
    ]
    assert not found, "name encoding='utf-8'"


def _calls(path: Path) -> Iterator[ast.Call]:
    text = path.read_text(encoding="utf-8")
    if not re.search(r"open\(|_text\(|text=|universal_newlines=|File\(|FileHandler\(", text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield node


def _depends_on_locale(call: ast.Call) -> bool:
    """Return True if the locale determines the encoding of this call."""
    given = {each.arg: each.value for each in call.keywords}
    if "encoding" in given:
        return False
    match call.func:
        case ast.Name("open"):
            return not _is_binary(call.args[1] if len(call.args) > 1 else given.get("mode"))
        case ast.Attribute(_, "read_text"):
            return not call.args
        case ast.Attribute(_, "write_text"):
            return len(call.args) < 2
        case ast.Attribute(_, "open") if call.args and _is_mode(call.args[0]):
            return not _is_binary(call.args[0])
        case ast.Attribute(_, "run" | "Popen" | "check_output" | "run_process"):
            return bool({"text", "universal_newlines"} & given.keys())
        case ast.Attribute(ast.Name("click"), "File"):
            return not _is_binary(call.args[0] if call.args else given.get("mode"))
        case ast.Attribute(_, "fdopen" | "FileHandler" | "NamedTemporaryFile"):
            mode = call.args[1] if len(call.args) > 1 else given.get("mode")
            return not _is_binary(mode)
    return False


def _is_mode(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and str(node.value) in (
        "r",
        "w",
        "a",
        "x",
        "rb",
        "wb",
        "ab",
    )


def _is_binary(mode: ast.expr | None) -> bool:
    return isinstance(mode, ast.Constant) and "b" in str(mode.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("open(x)", True),
        ("open(x, 'rb')", False),
        ("p.read_text()", True),
        ("p.write_text(t)", True),
        ("p.open('w')", True),
        ("Store.open(s)", False),
        ("subprocess.run(c, text=True)", True),
        ("click.File()", True),
        ("p.read_text(encoding='utf-8')", False),
    ],
)
def test_locale_dependent_calls_are_detected(text: str, expected: bool) -> None:
    (call,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    assert _depends_on_locale(call) is expected
