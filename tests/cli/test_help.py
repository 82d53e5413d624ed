"""`kbroker help`: the help of commands, and texts about topics."""

from __future__ import annotations

import click
import pytest

from kbroker.cli import main
from kbroker.cli.help_topics import TOPICS

from ..commands import invoke
from .test_completion import proposed
from .test_secret_arguments import commands


def test_help_of_command_equals_its_help_option() -> None:
    for words in (["topic", "consume"], ["topic"], ["profile", "edit"], ["health"]):
        of_command = invoke("help", *words).stdout.split("Options:")
        assert of_command[1:] == invoke(*words, "--help").stdout.split("Options:")[1:]
        assert f" {' '.join(words)} " in of_command[0]


def test_help_without_arguments_lists_commands_and_topics() -> None:
    output = invoke("help").stdout
    assert output.startswith(invoke("--help").stdout.rstrip())
    for name, topic in TOPICS.items():
        assert f"  {name:<10}  {topic.summary}\n" in output


@pytest.mark.parametrize("name", TOPICS)
def test_help_topic_prints_text_that_fits_screen(name: str) -> None:
    output = invoke("help", name).stdout
    assert output.strip() == TOPICS[name].text.strip()
    assert max(map(len, output.splitlines())) <= 100


@pytest.mark.parametrize("name", TOPICS)
@pytest.mark.parametrize("columns", [40, 80])
def test_help_topic_fits_terminal_except_for_commands(
    monkeypatch: pytest.MonkeyPatch, name: str, columns: int
) -> None:
    monkeypatch.setattr("kbroker.cli.help.terminal_width", lambda: columns)
    output = invoke("help", name).stdout
    for line in output.splitlines():
        is_whole = line.startswith("  kbroker ") or " " not in line.strip()
        assert len(line) <= columns or is_whole, line
    assert output.split() == TOPICS[name].text.split()


def test_help_of_all_commands_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = [path for path, _ in commands(main)]
    assert len(listed) > 80
    for path in listed:
        text = invoke(*path, "--help").stdout.partition("Examples:")[0]
        assert max(map(len, text.splitlines())) <= 80, path


def test_help_of_all_commands_fits_40_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only lists of choices and lines that are printed as they are may be longer."""
    monkeypatch.setenv("COLUMNS", "40")
    for path, command in [((), main), *commands(main)]:
        text = invoke(*path, "--help").stdout.partition("Examples:")[0]
        _, _, unwrapped = (command.help or "").partition("\b")
        for line in text.splitlines():
            is_choice = line.startswith("  -") and "[" in line.rpartition(" ")[2]
            assert len(line) <= 40 or is_choice or line.strip() in unwrapped, (path, line)


def test_help_of_unknown_words_names_similar_ones() -> None:
    assert "did you mean 'offsets'?" in invoke("help", "ofsets", status=2).stderr
    assert "did you mean 'topic'?" in invoke("help", "topics", status=2).stderr
    output = invoke("help", "topic", "consum", status=2).stderr
    assert "no help for 'topic consum'; did you mean 'consume'?" in output
    assert "no help for 'health x'" in invoke("help", "health", "x", status=2).stderr


def test_help_completes_topics_and_commands() -> None:
    assert proposed("help", incomplete="off") == ["offsets"]
    assert proposed("help", incomplete="pro") == ["profiles", "profile"]
    assert proposed("help", "topic", incomplete="con") == ["consume"]
    assert proposed("help", "nothing", incomplete="c") == []


def test_help_on_terminal_has_bold_headings() -> None:
    assert "\x1b[1mOptions:\x1b[0m" in invoke("--color", "always", "help", "topic").stdout
    assert "\x1b[1mRecords:\x1b[0m" in invoke("--color", "always", "topic", "--help").stdout
    assert "\x1b" not in invoke("help", "topic").stdout


def command_names(group: str) -> list[str]:
    with click.Context(main) as context:
        found = main.get_command(context, group)
        assert isinstance(found, click.Group)
        return found.list_commands(context)


@pytest.mark.parametrize(
    ("group", "headings"),
    [
        ("cluster", ["State:", "Brokers and partitions:", "Nodes of a server with several nodes:"]),
        ("group", ["Groups:", "Offsets:"]),
        ("security", ["Authentication:", "Authorization:"]),
    ],
)
def test_help_of_group_lists_all_commands_in_sections(group: str, headings: list[str]) -> None:
    output = invoke(group, "--help").stdout
    lines = output.splitlines()
    assert [line for line in lines if line in headings] == headings
    assert "\nCommands:" not in output
    assert "\nOther commands:" not in output
    assert "..." not in output.partition("Options:")[2]
    for name in command_names(group):
        assert sum(line.startswith(f"  {name} ") for line in lines) == 1, name
