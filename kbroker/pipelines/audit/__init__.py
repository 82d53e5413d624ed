"""Audit: checks the records of a topic, and compares topics with each other or with a lake.

`audit_topic` checks one topic, `compare_offsets` and `compare_contents` compare two, and
`kbroker.pipelines.audit.lake.compare_lake` compares a topic with its archive (only this needs
pyarrow). Batches are read over the wire unchanged, from any Kafka cluster. In tests, use
`check_topic`, `check_same` and `check_lake`, which raise `AuditError` with the findings.
"""

from .checks import check_lake, check_same, check_topic
from .findings import AuditError, Finding, Findings, Kind
from .identity import BadIdentity, Identity
from .pair import PairReport, compare_contents, compare_offsets
from .reader import Source
from .topic import TopicReport, audit_topic

__all__ = [
    "AuditError",
    "BadIdentity",
    "Finding",
    "Findings",
    "Identity",
    "Kind",
    "PairReport",
    "Source",
    "TopicReport",
    "audit_topic",
    "check_lake",
    "check_same",
    "check_topic",
    "compare_contents",
    "compare_offsets",
]
