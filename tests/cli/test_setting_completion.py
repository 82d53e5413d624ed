"""Completion of names and values of Kafka's settings."""

from __future__ import annotations

import click
import pytest

from kbroker.cli.setting_completion import complete_topic_settings

from .test_completion import proposed


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        ("topic create -c", "cleanup", ["cleanup.policy="]),
        ("topic create -c", "cleanup.policy=", ["compact", "delete"]),
        ("topic create -c", "cleanup.policy=compact,", ["compact,delete"]),
        ("topic create", "--config=cleanup.policy=co", ["compact"]),
        ("topic alter-config t --set", "compression.type=z", ["zstd"]),
        ("topic alter-config t --set", "retention.ms=", ["604800000"]),
        ("topic alter-config t --set", "retention.ms=1", []),
        ("topic alter-config t --set", "unclean.leader.election.enable=", ["true", "false"]),
        ("topic alter-config t --set", "no.such.setting=", []),
        ("topic alter-config t --delete", "cleanup", ["cleanup.policy"]),
        ("group alter-config g --set", "share.isolation.level=read_c", ["read_committed"]),
        ("group alter-config g --delete", "share.auto", ["share.auto.offset.reset"]),
        ("config set --default", "log.retention.h", ["log.retention.hours="]),
        ("config unset --default", "log.retention.h", ["log.retention.hours"]),
        ("config explain", "cleanup", ["cleanup.policy"]),
        ("serve -o", "auto.create", ["auto.create.topics.enable="]),
        ("run -o", "auto.create.topics.enable=f", ["false"]),
    ],
)
def test_completion_proposes_names_and_values_of_settings(
    words: str, incomplete: str, expected: list[str]
) -> None:
    assert proposed(*words.split(), incomplete=incomplete) == expected


def test_proposed_settings_have_descriptions() -> None:
    context, parameter = click.Context(click.Command("x")), click.Option(["--x"])
    (item,) = complete_topic_settings(context, parameter, "cleanup")
    assert item.help is not None
    assert item.help.startswith("Cleanup policy of the topic")
    assert "`" not in item.help
