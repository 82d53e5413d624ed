"""Sentences that describe the records of internal topics."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.cluster.model import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from kbroker.text.documents import read_json

SCHEMAS_TOPIC = "_schemas"
# Maximum size of a key of `_schemas` that is described.
KEY_BYTES_MAX = 4096


def summary_of(topic: str, fields: Mapping[str, object]) -> str:
    """Return a sentence about a record that a coordinator wrote.

    Args:
        topic: Name of the internal topic.
        fields: The decoded record, from `coordinator_record`.
    """
    if topic == OFFSETS_TOPIC:
        return _group_summary(fields)
    if topic == TRANSACTIONS_TOPIC:
        return _transaction_summary(fields)
    return _share_summary(fields) if topic == SHARE_STATE_TOPIC else ""


def key_summary_of(key: Mapping[str, object]) -> str:
    """Return the object that the key of a coordinator's record names.

    Args:
        key: Fields of the key, from `decode_internal`.
    """
    if "transactional_id" in key:
        return f"transactional ID {key['transactional_id']}"
    name = f"group {key['group']}"
    if "topic_id" in key:
        return f"{name}, partition {key['partition']} of topic {key['topic_id']}"
    if "topic" in key:
        return f"{name}, {key['topic']}-{key['partition']}"
    if "regular_expression" in key:
        return f"{name}, regular expression {key['regular_expression']}"
    return f"{name}, member {key['member_id']}" if "member_id" in key else name


def _group_summary(fields: Mapping[str, object]) -> str:
    group = f"Group {fields['group']}"
    if "topic" in fields and "partition" in fields:
        where = f"{fields['topic']}-{fields['partition']}"
        if "tombstone" in fields:
            return f"{group}: the committed offset of {where} was deleted"
        return f"{group} committed offset {fields['committed_offset']} of {where}"
    member = f", member {fields['member_id']}" if "member_id" in fields else ""
    if "regular_expression" in fields:
        member = f", regular expression {fields['regular_expression']}"
    if "tombstone" in fields:
        return f"{group}{member}: deleted"
    if isinstance(members := fields.get("members"), list):
        count = f"{len(members)} member{'' if len(members) == 1 else 's'}"
        return f"{group}: generation {fields['generation']} with {count}"
    return f"{group}{member}: {_group_change(fields)}"


def _group_change(fields: Mapping[str, object]) -> str:
    for name, text in (
        ("member_epoch", "current assignment, member epoch"),
        ("assignment_epoch", "target assignment, epoch"),
        ("epoch", "group epoch"),
    ):
        if name in fields:
            return f"{text} {fields[name]}"
    if isinstance(names := fields.get("subscribed_topic_names"), list):
        return f"subscribed to {', '.join(map(str, names[:10])) or 'no topic by name'}"
    if isinstance(parts := fields.get("topic_partitions"), list):
        return f"target assignment with partitions of {len(parts)} topics"
    return "state"


def _transaction_summary(fields: Mapping[str, object]) -> str:
    name = f"Transactional ID {fields['transactional_id']}"
    if "tombstone" in fields:
        return f"{name}: deleted"
    producer = f"producer {fields['producer_id']}, epoch {fields['producer_epoch']}"
    partitions = fields.get("partitions")
    parts = (
        [each for each in partitions.values() if isinstance(each, list)]
        if isinstance(partitions, dict)
        else []
    )
    count = sum(map(len, parts))
    return f"{name}: {fields['state']}, {count} partition{'' if count == 1 else 's'}, {producer}"


def _share_summary(fields: Mapping[str, object]) -> str:
    name = f"Share group {fields['group']}: partition {fields['partition']} of topic {fields['topic_id']}"
    if "tombstone" in fields:
        return f"{name}, deleted"
    batches = fields.get("state_batches")
    count = len(batches) if isinstance(batches, list) else 0
    return (
        f"{name}, {fields['state']} with start offset {fields['start_offset']} "
        f"and {count} batch{'' if count == 1 else 'es'}"
    )


def schema_summary(key: bytes, *, is_deleted: bool) -> str:
    """Return a sentence about a record of the schema registry, or "" for an unknown key.

    Args:
        key: The record's key, a JSON document.
        is_deleted: True if the value is null.
    """
    if len(key) > KEY_BYTES_MAX:
        return ""
    try:
        fields = read_json(key)
    except ValueError:
        return ""
    if not isinstance(fields, dict):
        return ""
    kind, subject = fields.get("keytype"), fields.get("subject")
    if kind == "SCHEMA":
        text = f"Subject {subject}, version {fields.get('version')}"
        return f"{text}: deleted permanently" if is_deleted else text
    if kind in ("CONFIG", "MODE"):
        setting = "Compatibility level" if kind == "CONFIG" else "Mode"
        whose = f"of subject {subject}" if subject else "of all subjects"
        return f"{setting} {whose}{': reset' if is_deleted else ''}"
    if kind == "DELETE_SUBJECT":
        return f"Subject {subject}: deleted"
    return "Marker of a node that waits for the newest schemas" if kind == "NOOP" else ""
