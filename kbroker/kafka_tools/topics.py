"""The kafka-topics tool: creates, lists, describes, alters and deletes topics."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kbroker.cli.output import reported_changes, say, say_before_change

from .base import (
    FAILED,
    Parser,
    match_names,
    message_of,
    parse_pairs_or_exit,
    run,
    topic_names,
)

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.configs import Setting
    from kbroker.protocol.messages.metadata import MetadataResponse

VERBS = ("create", "list", "describe", "alter", "delete")
FACTOR_MAX = 32767


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-topics", "kbroker topic")
    parser.add_flags(*(f"--{verb}" for verb in VERBS))
    parser.add_flags(
        "--if-exists", "--if-not-exists", "--exclude-internal", "--topics-with-overrides"
    )
    parser.add_flags("--under-replicated-partitions", "--unavailable-partitions")
    parser.add_flags("--under-min-isr-partitions", "--at-min-isr-partitions")
    parser.add_values("--topic", "--topic-id", "--replica-assignment")
    parser.add_lists("--config", "--delete-config")
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--replication-factor", type=int)
    parser.add_ignored("--partition-size-limit-per-response")
    options = parser.parse_args(arguments)
    requested = [verb for verb in VERBS if getattr(options, verb)]
    if len(requested) != 1:
        parser.error(f"give exactly one of {', '.join(f'--{verb}' for verb in VERBS)}")
    for name in ("topic_id", "replica_assignment", "delete_config"):
        if getattr(options, name):
            parser.exit_with_message(f"--{name.replace('_', '-')} is not supported")
    if requested[0] in ("create", "alter", "delete") and options.topic is None:
        parser.error(f"--{requested[0]} needs --topic")
    run(parser, options, lambda cluster: _WORK[requested[0]](cluster, options), _failed)


def _failed(text: str) -> None:
    say(f"Error while executing topic command : {text}")


def _fail(text: str) -> None:
    _failed(text)
    sys.exit(FAILED)


async def _selected_topics(cluster: ClusterClient, options: Namespace) -> list[str]:
    """Return the existing topics that the options select; exit if there are none."""
    names = await topic_names(cluster, internal=not options.exclude_internal)
    if options.topic is None:
        return names
    found = match_names(options.topic, names)
    if not found and not options.if_exists and not options.list:
        _fail(f"Topic '{options.topic}' does not exist as expected")
    return found


async def _create(cluster: ClusterClient, options: Namespace) -> None:
    from kbroker.client.topics import DEFAULT, NewTopic, create_topics, wait_until_ready
    from kbroker.protocol.errors import ErrorCode

    name, partitions, factor = options.topic, options.partitions, options.replication_factor
    if "." in name or "_" in name:
        say_before_change(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore "
            "('_') could collide. To avoid issues it is best to use either, but not both."
        )
    if partitions is not None and partitions < 1:
        _fail("The partitions must be greater than 0")
    if factor is not None and not 1 <= factor <= FACTOR_MAX:
        _fail(f"The replication factor must be between 1 and {FACTOR_MAX} inclusive")
    new = NewTopic(
        name, partitions or DEFAULT, factor or DEFAULT, parse_pairs_or_exit(options.config)
    )
    code, message = (await create_topics(cluster, [new]))[name]
    if code == ErrorCode.TOPIC_ALREADY_EXISTS and options.if_not_exists:
        return
    if code:
        _fail(message_of(code, message))
    say_before_change(f"Created topic {name}.")
    await wait_until_ready(cluster, {name: new.partitions})


async def _list(cluster: ClusterClient, options: Namespace) -> None:
    say(*await _selected_topics(cluster, options))


async def _alter(cluster: ClusterClient, options: Namespace) -> None:
    from kbroker.client.topics import grow_topic

    if options.partitions is None:
        _fail("--alter needs --partitions; `kafka-configs --alter` changes settings")
    names = await _selected_topics(cluster, options)
    with reported_changes(names) as changed:
        for name in names:
            await grow_topic(cluster, name, options.partitions)
            changed.append(name)


async def _delete(cluster: ClusterClient, options: Namespace) -> None:
    from kbroker.client.topics import delete_topics

    names = await _selected_topics(cluster, options)
    if not names:
        return
    with reported_changes(names) as deleted:
        outcome = await delete_topics(cluster, names)
        deleted += [name for name in names if not outcome[name][0]]
        for code, message in outcome.values():
            if code:
                _fail(message_of(code, message))


async def _describe(cluster: ClusterClient, options: Namespace) -> None:
    from kbroker.client.configs import Resource, describe_configs

    names = await _selected_topics(cluster, options)
    if not names:
        return
    settings = await describe_configs(cluster, Resource.TOPIC, names)
    answer = await cluster.metadata(names)
    alive = {row.node_id for row in answer.brokers}
    found = {row.name or "": row for row in answer.topics}
    for name in names:
        say(*_description_lines(found[name], settings[name], alive, options), keep="\t")


def _description_lines(
    topic: MetadataResponse.Topic, settings: Sequence[Setting], alive: set[int], options: Namespace
) -> Iterator[str]:
    from kbroker.client.topic_details import id_text

    overrides = [f"{each.name}={each.value}" for each in settings if not each.is_default]
    is_filtered = (
        options.under_replicated_partitions
        or options.unavailable_partitions
        or options.under_min_isr_partitions
        or options.at_min_isr_partitions
    )
    if options.topics_with_overrides and not overrides:
        return
    partitions = sorted(topic.partitions, key=lambda row: row.partition_index)
    if not is_filtered:
        factor = len(partitions[0].replica_nodes) if partitions else 0
        yield (
            f"Topic: {topic.name}\tTopicId: {id_text(topic.topic_id)}\tPartitionCount: "
            f"{len(partitions)}\tReplicationFactor: {factor}\tConfigs: {','.join(overrides)}"
        )
    if options.topics_with_overrides:
        return
    min_isr = next((int(each.value or 1) for each in settings if each.name == _MIN_ISR), 1)
    for row in partitions:
        if is_filtered and not _is_selected(row, min_isr, alive, options):
            continue
        leader = row.leader_id if row.leader_id >= 0 else "none"
        yield (
            f"\tTopic: {topic.name}\tPartition: {row.partition_index}\tLeader: {leader}\tReplicas: "
            f"{_join_ids(row.replica_nodes)}\tIsr: {_join_ids(row.isr_nodes)}\tElr: \tLastKnownElr: "
        )


_MIN_ISR = "min.insync.replicas"


def _is_selected(
    row: MetadataResponse.Partition, min_isr: int, alive: set[int], options: Namespace
) -> bool:
    in_sync = len(row.isr_nodes)
    return (
        (options.under_replicated_partitions and in_sync < len(row.replica_nodes))
        or (options.unavailable_partitions and row.leader_id not in alive)
        or (options.under_min_isr_partitions and in_sync < min_isr)
        or (options.at_min_isr_partitions and in_sync == min_isr)
    )


def _join_ids(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))


_WORK = {
    "create": _create,
    "list": _list,
    "describe": _describe,
    "alter": _alter,
    "delete": _delete,
}
