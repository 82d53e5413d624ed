"""Explanations of groups, partitions, transactions and clients, from Kafka's public APIs.

They work with every Kafka broker, and show only what the client may describe.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import trio

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.text.times import iso_time

from .cluster import ClusterClient
from .configs import Resource, describe_configs
from .errors import NoSuchGroup, NoSuchPartition, error_code
from .group_details import Row, group_details, lacks_offset
from .groups import SHARE, committed_offsets, describe_group, list_groups
from .list_offsets import EARLIEST, LATEST, list_offsets
from .topics import Partition
from .transactions import (
    ONGOING,
    active_producers,
    describe_transaction,
    list_transactions,
    open_transactions,
)

# Maximum number of partitions, members or transactions that an explanation lists.
SHOWN = 20
# Maximum number of groups in which members of a client are searched.
GROUPS_SEARCHED = 1_000
NO_LEADER = -1
# Time in which members that process records commit: more than auto.commit.interval.ms (5 s).
COMMIT_SECONDS = 6

_GROUP_STATES = MappingProxyType(
    {
        "Empty": "it has no members; its committed offsets remain until they expire",
        "Stable": "all members have their partitions",
        "PreparingRebalance": "a rebalance waits until all members have joined again",
        "CompletingRebalance": "a rebalance waits for the assignment from the group's leader",
        "Assigning": "the coordinator is computing a new assignment",
        "Reconciling": "members still have to release or take partitions of the new assignment",
        "NotReady": "the source topics of its topology are missing or do not match",
        "Dead": "it has been deleted",
    }
)
_TRANSACTION_STATES = MappingProxyType(
    {
        "Empty": "the transactional ID has no open transaction",
        "Ongoing": "the transaction is open: its producer has neither committed nor aborted it",
        "PrepareCommit": "the transaction is committed; its partitions get their markers now",
        "PrepareAbort": "the transaction is aborted; its partitions get their markers now",
        "CompleteCommit": "the last transaction is committed",
        "CompleteAbort": "the last transaction is aborted",
        "PrepareEpochFence": "a newer producer fences the transaction, which will be aborted",
        "Dead": "the transactional ID has expired",
    }
)


async def explain_group(cluster: ClusterClient, name: str) -> list[str]:
    """Return sentences about a group: its state, members, lag, and partitions that nobody reads.

    If members have unread records, this waits `COMMIT_SECONDS` to see whether they commit offsets.

    Raises:
        NoSuchGroup: The group does not exist.
        KafkaError: A broker rejects a request.
    """
    found = await group_details(cluster, name)
    meaning = _GROUP_STATES.get(found["state"])
    lines = [
        f"group {name} ({found['type'] or 'Classic'}) is {found['state']}"
        + (f": {meaning}" if meaning else ""),
        f"broker {found['coordinator']} coordinates it",
    ]
    return lines + progress_sentences(found) + await _stall_lines(cluster, found)


def state_sentences(found: Row) -> list[str]:
    """Return what the state of a group means, if it is known.

    Args:
        found: Group of `group_details`.
    """
    meaning = _GROUP_STATES.get(found["state"])
    return [f"{found['state']} means: {meaning}"] if meaning else []


def progress_sentences(found: Row) -> list[str]:
    """Return sentences about the members and the lag of a group.

    Args:
        found: Group of `group_details`.
    """
    return _member_lines(found["partitions"]) + _lag_lines(found)


async def blocked_sentences(cluster: ClusterClient, found: Row) -> list[str]:
    """Return sentences about open transactions for which members of a group wait now.

    Args:
        cluster: Cluster of the group.
        found: Group of `group_details`.

    Raises:
        KafkaError: A broker rejects a request.
    """
    behind = [row for row in _owned_rows(found) if row["lag"]]
    if not behind or found["type"] == SHARE:
        return []
    blocked = await _blocked_at(cluster, behind)
    waiting = {_partition(row) for row in behind if _is_blocked(row, blocked)}
    return await _blocked_lines(
        cluster, {each: blocked[each] for each in blocked if each in waiting}
    )


def _owned_rows(found: Row) -> list[Row]:
    """Return the rows of partitions that are assigned to members."""
    return [
        row
        for row in found["partitions"]
        if row["member_id"] is not None and row["topic"] is not None
    ]


async def _stall_lines(cluster: ClusterClient, found: Row) -> list[str]:
    """Return sentences if members with unread records read or commit nothing for some seconds."""
    owned = _owned_rows(found)
    behind = [row for row in owned if row["lag"] or lacks_offset(row)]
    if not behind or found["type"] == SHARE:
        return []
    before = await _blocked_at(cluster, behind)
    await trio.sleep(COMMIT_SECONDS)
    blocked = {
        partition: offset
        for partition, offset in (await _blocked_at(cluster, behind)).items()
        if before.get(partition) == offset
    }
    lines = await _blocked_lines(cluster, blocked)
    committed = await committed_offsets(cluster, found["group"])
    if any(committed.get(_partition(row)) != row["current_offset"] for row in owned):
        return lines
    return lines + _no_commit_lines([row for row in behind if not _is_blocked(row, blocked)])


def _no_commit_lines(rows: Sequence[Row]) -> list[str]:
    """Return a sentence about the members that could read these partitions and commit nothing."""
    if not rows:
        return []
    clients = sorted({f"{row['client_id']} at {row['host']}" for row in rows})
    line = (
        f"no offset was committed for {COMMIT_SECONDS} s although records are unread; members: "
        f"{_some(clients)}; if this continues, they do not process or commit records, or they were "
        "killed and their sessions have not ended: check the application (max.poll.interval.ms, "
        "session.timeout.ms)"
    )
    return [line]


def _partition(row: Row) -> Partition:
    return row["topic"], row["partition"]


async def _blocked_at(cluster: ClusterClient, rows: Iterable[Row]) -> dict[Partition, int]:
    """Return the offsets at which open transactions block read_committed consumers."""
    ends = {_partition(row): row["log_end_offset"] for row in rows}
    found = await list_offsets(cluster, dict.fromkeys(ends, LATEST), committed=True)
    return {
        partition: stable.offset
        for partition, stable in found.items()
        if not stable.error and ends[partition] is not None and stable.offset < ends[partition]
    }


def _is_blocked(row: Row, blocked: Mapping[Partition, int]) -> bool:
    """Return True if a read_committed consumer at the row's offset waits for a transaction.

    Without a committed offset, the consumer is at the log start offset or at the last stable offset.
    """
    stable, offset = blocked.get(_partition(row)), row["current_offset"]
    if offset is None:
        offset = row["log_start_offset"]
    # The offset before the open transaction may be the marker of an earlier one, not a record.
    return stable is not None and offset is not None and offset >= stable - 1


async def _blocked_lines(cluster: ClusterClient, blocked: Mapping[Partition, int]) -> list[str]:
    """Return sentences about the transactions that block read_committed consumers."""
    if not blocked:
        return []
    try:
        opened = await open_transactions(cluster, blocked)
        owners = {each.producer_id: each.id for each in await list_transactions(cluster)}
    except KafkaError:
        opened, owners = [], {}
    # Several transactions may be open in a partition; the first one blocks consumers.
    first = {
        each.partition: f"the transaction of producer {each.producer_id} "
        f"({_owner(owners, each.producer_id)})"
        for each in reversed(opened)
    }
    lines = [
        f"members with isolation.level=read_committed wait at offset {offset} of {topic}-{index}, "
        f"because {first.get((topic, index), 'a transaction')} is open"
        for (topic, index), offset in blocked.items()
    ]
    return _shortened(lines, "partitions")


def _member_lines(rows: Iterable[Row]) -> list[str]:
    members: dict[str, list[str]] = {}
    clients: dict[str, str] = {}
    for row in rows:
        if row["member_id"] is not None:
            owned = members.setdefault(row["member_id"], [])
            clients[row["member_id"]] = f"client {row['client_id']} at {row['host']}"
            if row["topic"] is not None:
                owned.append(f"{row['topic']}-{row['partition']}")
    lines = [
        f"member {member} ({clients[member]}) "
        + (f"has {_some(owned)}" if owned else "has no partitions: other members have them")
        for member, owned in members.items()
    ]
    return _shortened(lines, "members")


def _lag_lines(found: Row) -> list[str]:
    rows = [row for row in found["partitions"] if row["topic"] is not None]
    behind = sorted((row for row in rows if row["lag"]), key=lambda row: row["lag"], reverse=True)
    missing = _without_offset_lines(found, rows) + _unknown_lag_lines(found, rows)
    if not behind:
        read_all = ["it has read all records of its partitions"] if rows and not missing else []
        return read_all + missing
    lines, total = [], found["total_lag"]
    for row in behind:
        owner = "" if row["member_id"] is not None or not found["members"] else ", has no member"
        lines.append(
            f"{row['topic']}-{row['partition']} is {_records(row['lag'])} behind "
            f"(at {row['current_offset']} of {row['log_end_offset']}){owner}"
        )
    return [
        f"{_records(total)} {'is' if total == 1 else 'are'} unread",
        *_shortened(lines, "partitions"),
        *missing,
    ]


def _unknown_lag_lines(found: Row, rows: Iterable[Row]) -> list[str]:
    """Return a sentence about partitions with records whose lag no broker reports."""
    if found["type"] == SHARE:
        unknown = [row for row in rows if row["lag"] is None and _may_hold_records(row)]
        line = "no lag is known for {}: the members have read no records there yet"
    else:
        unknown = [row for row in rows if row["lag"] is None and row["current_offset"] is not None]
        line = (
            "no lag is known for {}: the topic was deleted, is not available, or this user may not "
            "describe it"
        )
    names = [f"{row['topic']}-{row['partition']}" for row in unknown]
    return [line.format(_some(names))] if names else []


def _may_hold_records(row: Row) -> bool:
    start, end = row["log_start_offset"], row["log_end_offset"]
    return start is None or end is None or start < end


def _without_offset_lines(found: Row, rows: Iterable[Row]) -> list[str]:
    """Return a sentence about partitions with records and without a committed offset."""
    if not found["without_offset"]:
        return []
    names = [f"{row['topic']}-{row['partition']}" for row in rows if lacks_offset(row)]
    line = (
        f"no offset is committed for {_some(names)}: the lag does not include these partitions, and "
        "consumers start there as their setting auto.offset.reset says"
    )
    return [line]


async def explain_partition(cluster: ClusterClient, topic: str, index: int) -> list[str]:
    """Return sentences about a partition: leader, replicas, offsets, transactions and producers.

    Raises:
        NoSuchTopic: The topic or the partition does not exist.
        KafkaError: A broker rejects a request.
    """
    (row,) = await cluster.topics([topic])
    part = next((each for each in row.partitions if each.partition_index == index), None)
    if part is None:
        count = len(row.partitions)
        raise NoSuchPartition(
            topic, index, count, hint=f"`kbroker topic describe {topic}` lists them"
        )
    where = f"partition {topic}-{index}"
    replicas = ", ".join(map(str, part.replica_nodes))
    if part.leader_id == NO_LEADER:
        code = error_code(part.error_code).name
        return [
            f"{where} is not available: it has no leader ({code})",
            (
                f"its replicas are on brokers {replicas}; of these, {_some(part.isr_nodes)} were in "
                "sync and can become the leader when they are back"
            ),
        ]
    lines = [
        f"{where} is available: broker {part.leader_id} is the leader, epoch {part.leader_epoch}",
        f"its replicas are on brokers {replicas}; in sync: {_some(part.isr_nodes)}",
    ]
    if part.offline_replicas:
        lines.append(f"the replicas on brokers {_some(part.offline_replicas)} are offline")
    lines += await _write_lines(cluster, topic, len(part.isr_nodes))
    return lines + await _offset_lines(cluster, (topic, index))


async def _write_lines(cluster: ClusterClient, topic: str, in_sync: int) -> list[str]:
    """Return a sentence if producers with acks=all are rejected."""
    name = "min.insync.replicas"
    try:
        settings = (await describe_configs(cluster, Resource.TOPIC, [topic], keys=[name]))[topic]
    except KafkaError as error:
        return [f"{name} is unknown ({error.code.name})"]
    least = next((int(each.value) for each in settings if each.name == name and each.value), 1)
    if in_sync >= least:
        return []
    return [f"producers with acks=all are rejected: {name} is {least}, {in_sync} are in sync"]


async def _offset_lines(cluster: ClusterClient, one: Partition) -> list[str]:
    starts = await list_offsets(cluster, {one: EARLIEST})
    ends = await list_offsets(cluster, {one: LATEST})
    stable = await list_offsets(cluster, {one: LATEST}, committed=True)
    start, end = starts[one], ends[one]
    if start.error or end.error:
        return [f"its offsets cannot be read ({(start.error or end.error).name})"]
    lines = [f"it has the offsets {start.offset} to {end.offset}"]
    blocked_at = stable[one].offset
    if not stable[one].error and blocked_at < end.offset:
        lines.append(
            f"read_committed consumers wait at offset {blocked_at}, because a transaction is open"
        )
    return lines + await _producer_lines(cluster, one)


async def _producer_lines(cluster: ClusterClient, one: Partition) -> list[str]:
    """Return sentences about the open transactions and the producers of a partition."""
    try:
        opened = await open_transactions(cluster, [one])
        active = await active_producers(cluster, one)
        owners = {each.producer_id: each.id for each in await list_transactions(cluster)}
    except KafkaError as error:
        return [f"its producers and open transactions are unknown ({error.code.name})"]
    transactions = [
        f"producer {each.producer_id} ({_owner(owners, each.producer_id)}) has an open transaction "
        f"since offset {each.start_offset}, its last record is of {iso_time(each.last_timestamp)}"
        for each in opened
    ]
    is_open = {each.producer_id for each in opened}
    producers = [
        f"producer {each.producer_id}{_transactional(owners, each.producer_id)} has written, its "
        f"last record is of {iso_time(each.last_timestamp)}"
        for each in active
        if each.producer_id not in is_open
    ]
    return _shortened(transactions, "transactions") + _shortened(producers, "producers")


def _transactional(owners: Mapping[int, str], producer_id: int) -> str:
    known = owners.get(producer_id)
    return f" (transactional ID {known})" if known else ""


def _owner(owners: Mapping[int, str], producer_id: int) -> str:
    known = owners.get(producer_id)
    return f"transactional ID {known}" if known else "its transactional ID is unknown to this user"


async def explain_transaction(cluster: ClusterClient, transactional_id: str) -> list[str]:
    """Return sentences about a transactional ID: its state, age and partitions.

    Raises:
        NoSuchTransaction: The transactional ID does not exist.
        KafkaError: The coordinator rejects the request.
    """
    found = await describe_transaction(cluster, transactional_id)
    meaning = _TRANSACTION_STATES.get(found.state)
    lines = [
        f"transactional ID {found.id} is {found.state}" + (f": {meaning}" if meaning else ""),
        (
            f"broker {found.coordinator} coordinates it for producer {found.producer_id}, epoch "
            f"{found.producer_epoch}"
        ),
    ]
    if found.state == ONGOING and found.start_ms >= 0:
        age = max(time.time_ns() // 1_000_000 - found.start_ms, 0) / 1000
        timeout = found.timeout_ms / 1000
        lines.append(
            f"it is open for {age:,.0f} s; the coordinator aborts it after {timeout:,.0f} s"
        )
    if found.partitions:
        names = [f"{name}-{index}" for name, index in found.partitions]
        lines.append(f"it has written to {_some(names)}")
    return lines


async def explain_share(cluster: ClusterClient, group: str, topic: str, index: int) -> list[str]:
    """Return sentences about the delivery of a partition to the members of a share group.

    Raises:
        NoSuchGroup: The group does not exist.
        NoSuchTopic: The topic or the partition does not exist.
        KafkaError: A broker rejects a request.
    """
    partition = await explain_partition(cluster, topic, index)
    found = await group_details(cluster, group)
    rows = [
        row for row in found["partitions"] if (row["topic"], row["partition"]) == (topic, index)
    ]
    meaning = _GROUP_STATES.get(found["state"])
    lines = [f"group {group} is {found['state']}" + (f": {meaning}" if meaning else "")]
    if found["type"] != SHARE:
        kind = found["type"] or "Classic"
        return [*lines, f"its type is {kind}: only share groups share partitions", *partition]
    if not rows:
        return [
            *lines,
            "the group does not share this partition: no member subscribes to the topic",
        ]
    (row,) = rows
    members = (row["member_id"] or "").split(",") if row["member_id"] else []
    lines.append(f"members with this partition: {_some(members) if members else 'none'}")
    if row["current_offset"] is not None:
        lag = "" if row["lag"] is None else f"; {row['lag']:,} records are not finished"
        lines.append(
            f"the first record that is not finished has offset {row['current_offset']}{lag}"
        )
    return lines + partition


async def explain_client(cluster: ClusterClient, client_id: str) -> list[str]:
    """Return sentences about the members of groups that have a client ID.

    Raises:
        KafkaError: A broker rejects a request.
    """
    listed = await list_groups(cluster)
    lines, hidden = [], 0
    for each in listed[:GROUPS_SEARCHED]:
        try:
            members = (await describe_group(cluster, each.name)).members
        except NoSuchGroup:  # The group was deleted after it had been listed.
            continue
        except KafkaError as error:
            if error.code != ErrorCode.GROUP_AUTHORIZATION_FAILED:
                raise
            hidden += 1
            continue
        lines += [
            f"member {member.id} of group {each.name} at {member.host} "
            + (
                f"has {_some(_names(member.partitions))}"
                if member.partitions
                else "has no partitions"
            )
            for member in members
            if member.client_id == client_id
        ]
    searched = min(len(listed), GROUPS_SEARCHED) - hidden
    if not lines:
        where = f"the {searched:,} groups that this user may describe"
        return [f"no member of {where} has the client ID {client_id}"]
    if searched < len(listed):
        lines.append(f"only {searched:,} of {len(listed):,} groups were searched")
    return [f"client {client_id}:", *_shortened(lines, "members")]


def _names(partitions: Iterable[Partition]) -> list[str]:
    return [f"{name}-{index}" for name, index in partitions]


def _records(number: int) -> str:
    return f"{number:,} record{'' if number == 1 else 's'}"


def _some(values: Sequence[object]) -> str:
    """Return the first values, and the number of the others."""
    shown = ", ".join(map(str, values[:SHOWN])) or "none"
    return shown if len(values) <= SHOWN else f"{shown} and {len(values) - SHOWN:,} more"


def _shortened(lines: list[str], noun: str) -> list[str]:
    if len(lines) <= SHOWN:
        return lines
    return [*lines[:SHOWN], f"{len(lines) - SHOWN:,} more {noun} are not shown"]
