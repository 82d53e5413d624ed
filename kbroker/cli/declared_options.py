"""Options of commands that start a broker: topics and records to create before it is ready."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from kbroker.cluster.topics import NewTopic

    from .topic_files import DeclaredTopic

Command = TypeVar("Command", bound=Callable[..., object])


def declared_options(command: Command) -> Command:
    """Give a command `--topic`, `--topics-file` and `--seed`; it receives `topics` and `seeds`."""

    @click.option(
        "--topic",
        "names",
        envvar="KBROKER_TOPIC",
        multiple=True,
        metavar="NAME[:PARTITIONS[:K=V,...]]",
        help="Create this topic before the broker is ready; can be given several times.",
    )
    @click.option(
        "--topics-file",
        "files",
        envvar="KBROKER_TOPICS_FILE",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False),
        help="Create the topics in this file before the broker is ready: TOML, or JSON from `topic "
        "describe`.",
    )
    @click.option(
        "--seed",
        "seeds",
        envvar="KBROKER_SEED_FILE",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE.ndjson",
        help="Write these records, in the format of `topic consume --json`, before the broker is "
        "ready. Topics that already have records are skipped.",
    )
    @functools.wraps(command)
    def with_topics(
        *args: object,
        names: tuple[str, ...],
        files: tuple[str, ...],
        seeds: tuple[str, ...],
        **kw: object,
    ) -> object:
        from kbroker.cluster.topics import NewTopic

        from .topic_files import BadTopic, parse_topic, read_topics

        try:
            declared = [each for path in files for each in read_topics(Path(path))]
            declared += [parse_topic(text) for text in names]
        except BadTopic as error:
            raise click.UsageError(str(error)) from None
        topics = [_new_topic(NewTopic, each) for each in declared]
        return command(*args, topics=topics, seeds=seeds, **kw)

    return with_topics  # type: ignore[return-value]


def _new_topic(cls: type[NewTopic], declared: DeclaredTopic) -> NewTopic:
    return cls(
        declared.name,
        declared.partitions,
        declared.replication_factor,
        configs=dict(declared.configs),
    )
