"""Clients of a cluster, as far as Kafka's public APIs report them: members of groups, and producers.

Brokers report no client ID and no address of producers, and nothing about consumers without a group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from kbroker.protocol.errors import KafkaError

from .cluster import ClusterClient
from .errors import DENIED, NoSuchGroup
from .groups import describe_group, list_groups
from .topics import Partition
from .transactions import ActiveProducer, list_transactions, producers_by_partition

CONSUMER, PRODUCER = "consumer", "producer"


@dataclass(frozen=True, slots=True)
class ListedClient:
    """A member of a group, or a producer; fields that do not apply or are unknown are None.

    Attributes:
        role: `CONSUMER` or `PRODUCER`.
        topics: Topics of which a member has partitions, or to which a producer has written, sorted.
        last_timestamp: Timestamp of a producer's newest record, in ms since the epoch.
    """

    role: str
    topics: list[str]
    client_id: str | None = None
    host: str | None = None
    group: str | None = None
    transactional_id: str | None = None
    producer_id: int | None = None
    last_timestamp: int | None = None

    def row(self) -> dict[str, object]:
        """Return the fields for commands."""
        return asdict(self)


class Clients(NamedTuple):
    """Clients of a cluster.

    Attributes:
        listed: Members of groups by name of the group, then producers, newest record first.
        old_producers: Number of producers that are left out because of their last record.
        hidden: What brokers do not report to this user: "groups" and "producers".
    """

    listed: list[ListedClient]
    old_producers: int
    hidden: list[str]


async def cluster_clients(
    cluster: ClusterClient, topics: Collection[str] = (), *, since_ms: int = 0
) -> Clients:
    """Return the members of groups, and the producers with a producer ID.

    Args:
        cluster: The cluster to query.
        topics: Only clients of these topics; all if empty, and producers of internal topics are left
            out.
        since_ms: Leave out producers whose last record is older (ms since the epoch).

    Raises:
        NoSuchTopic: A topic does not exist.
        KafkaError: A broker rejects a request for another reason than a missing permission.
    """
    partitions = await _partitions(cluster, topics)
    members, hides_groups = await _members(cluster)
    hidden = ["groups"] if hides_groups else []
    producers: list[ListedClient] = []
    try:
        written = await producers_by_partition(cluster, partitions)
        owners = {each.producer_id: each.id for each in await list_transactions(cluster)}
        producers = _producers(written, owners)
    except KafkaError as error:
        if error.code not in DENIED:
            raise
        hidden.append("producers")
    recent = [each for each in producers if (each.last_timestamp or 0) >= since_ms]
    readers = [each for each in members if not topics or set(each.topics) & set(topics)]
    return Clients(readers + recent, len(producers) - len(recent), hidden)


async def _partitions(cluster: ClusterClient, topics: Collection[str]) -> list[Partition]:
    if topics:
        found = await cluster.topics(list(topics))
    else:
        found = [row for row in (await cluster.metadata()).topics if not row.is_internal]
    return [(row.name or "", part.partition_index) for row in found for part in row.partitions]


async def _members(cluster: ClusterClient) -> tuple[list[ListedClient], bool]:
    """Return the members of all groups, and True if this user may not describe all groups."""
    found, is_hidden = [], False
    for each in await list_groups(cluster):
        try:
            members = (await describe_group(cluster, each.name)).members
        except NoSuchGroup:  # The group was deleted after it had been listed.
            continue
        except KafkaError as error:
            if error.code not in DENIED:
                raise
            is_hidden = True
            continue
        found += [
            ListedClient(
                CONSUMER,
                sorted({name for name, _ in member.partitions}),
                member.client_id,
                member.host.removeprefix("/"),
                each.name,
            )
            for member in members
        ]
    return found, is_hidden


def _producers(
    written: Mapping[Partition, Iterable[ActiveProducer]], owners: Mapping[int, str]
) -> list[ListedClient]:
    """Return the producers, newest record first.

    Args:
        written: Producers by partition.
        owners: Transactional IDs by producer ID.
    """
    topics: dict[int, set[str]] = {}
    newest: dict[int, int] = {}
    for (name, _), producers in written.items():
        for each in producers:
            topics.setdefault(each.producer_id, set()).add(name)
            last = newest.get(each.producer_id, each.last_timestamp)
            newest[each.producer_id] = max(last, each.last_timestamp)
    return [
        ListedClient(
            PRODUCER,
            sorted(topics[producer_id]),
            transactional_id=owners.get(producer_id),
            producer_id=producer_id,
            last_timestamp=newest[producer_id],
        )
        for producer_id in sorted(newest, key=lambda each: newest[each], reverse=True)
    ]
