"""The option `--color` and the contexts of commands."""

from __future__ import annotations

import click
import pytest

from kbroker.cli import main
from kbroker.cli.command_context import CommandContext, prepare, words_of
from kbroker.cli.profiles import write_profiles

from ..commands import invoke


@pytest.mark.parametrize(
    "words", [("--color", "always", "profile", "list"), ("profile", "list", "--color", "always")]
)
def test_color_option_works_before_and_after_command(words: tuple[str, ...]) -> None:
    write_profiles("p", {"p": {}})
    assert "\x1b[1mNAME\x1b[0m" in invoke(*words).stdout
    assert "\x1b" not in invoke(*words, "-o", "json").stdout
    assert "\x1b" not in invoke(*words, "--color", "never").stdout


def test_errors_are_colored_only_if_requested() -> None:
    words = ("topic", "list", "-b", "127.0.0.1:1")
    assert invoke(*words, "--color", "always", status=1).stderr.startswith(
        "\x1b[31mkbroker: \x1b[0m"
    )
    assert invoke(*words, status=1).stderr.startswith("kbroker: 127.0.0.1:1 refuses")
    assert "\x1b[31mNo such command" in invoke("--color", "always", "topik", status=2).stderr
    assert "\x1b" not in invoke("topik", status=2).stderr


def test_prepare_gives_each_command_one_color_option() -> None:
    group = click.Group("all", commands=[click.Command("one")])
    prepare(group)
    prepare(group)
    assert [each.opts for each in group.commands["one"].params] == [["--color"]]
    assert group.commands["one"].context_class is CommandContext


def test_words_of_context_are_path_without_program() -> None:
    root = click.Context(main, info_name="kbroker")
    below = click.Context(click.Command("list"), parent=root, info_name="list")
    assert words_of(below) == ["list"]
    assert words_of(root) == []
