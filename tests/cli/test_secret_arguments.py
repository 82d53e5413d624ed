"""Errors of invalid command lines, which must not print secrets."""

from __future__ import annotations

from collections.abc import Iterator

import click

from kbroker.cli import main

from .secret_words import BAD_PAIRS, NOWHERE, SECRET, output_of_failing


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from commands(command, (*path, name))
            else:
                yield (*path, name), command


def invalid_arguments(command: click.Command) -> Iterator[list[str]]:
    """Return arguments that are invalid for a command."""
    if any(each.type is click.UNPROCESSED for each in command.params):
        return  # the arguments belong to another program
    yield [f"--no-such-option={SECRET}"]
    for each in command.params:
        if each.metavar == "KEY=VALUE":
            yield from ([each.opts[0], pair] for pair in BAD_PAIRS)
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    if all(each.nargs == 1 for each in arguments):
        yield [*["x"] * len(arguments), SECRET]


def test_usage_errors_hide_secret_arguments() -> None:
    lines = [
        [*path, *arguments]
        for path, command in commands(main)
        for arguments in invalid_arguments(command)
    ]
    for arguments in lines:
        assert SECRET not in output_of_failing(*arguments), arguments
    assert len(lines) > 150


def test_errors_of_invalid_settings_hide_secrets() -> None:
    for pair in BAD_PAIRS:
        assert SECRET not in output_of_failing("-X", pair, "topic", "list")
        assert SECRET not in output_of_failing("config", "set", pair, "--default", "-b", NOWHERE)
