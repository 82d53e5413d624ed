"""Examples and documentation pages in the help of commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from kbroker.cli import SECTIONS, main
from kbroker.cli.examples import GUIDES
from kbroker.cli.help_topics import TOPICS

from .test_output import leaves

ROOT = Path(__file__).parents[2]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_every_command_has_examples_and_no_other_name_has() -> None:
    assert set(GUIDES) == set(leaves(main))
    assert all(guide.examples for guide in GUIDES.values())


def test_every_command_is_in_one_section_of_help() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(main.list_commands(click.Context(main)))


def test_pages_of_examples_exist_with_their_anchors() -> None:
    pages = {guide.page for guide in GUIDES.values()}
    pages |= {topic.text.strip().rpartition("Documentation: ")[2] for topic in TOPICS.values()}
    for page in pages:
        path, _, anchor = page.partition("#")
        assert (ROOT / path).is_file(), page
        assert not anchor or anchor in anchors(ROOT / path), page


def parsed(line: str) -> None:
    """Parse a command line like click, without running the command.

    Raises:
        UsageError: The command line is invalid.
    """
    words = shlex.split(line.partition(" < ")[0].partition(" > ")[0])
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, line
        command, context = found, click.Context(found, parent=context, info_name=words.pop(0))
    if not any(each.type is click.UNPROCESSED for each in command.params):
        command.make_context(context.info_name, words, parent=context.parent).close()


@pytest.fixture
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a directory that has the files and directories of examples."""
    monkeypatch.chdir(tmp_path)
    for name in ("client.properties", "topics.toml", "job.log", "ca.pem", "order.avsc"):
        Path(name).touch()
    for name in ("kbroker-data/orders-0", "kafka-data", "lake"):
        Path(name).mkdir(parents=True)


@pytest.mark.usefixtures("_files")
def test_examples_are_valid_command_lines() -> None:
    for command, guide in GUIDES.items():
        for line in guide.examples:
            assert line == command or line.startswith(f"{command} "), line
            parsed(line)


@pytest.mark.usefixtures("_files")
def test_examples_of_topics_are_valid_command_lines() -> None:
    for topic in TOPICS.values():
        for line in re.findall(r"^  kbroker (.*)$", topic.text, re.MULTILINE):
            parsed(line)
