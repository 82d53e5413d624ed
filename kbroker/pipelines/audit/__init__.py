"""Audit: what a topic holds, whether all of it is sound, and whether another side has the same.

`audit_topic` looks at one topic, `compare_offsets` and `compare_contents` at two of them, and
`kbroker.pipelines.audit.lake.compare_lake` at a topic and its archive (it alone needs pyarrow). Batches
are read over the wire as they lie in the log, from any Kafka. For tests, `check_topic`, `check_same`
and `check_lake` raise `AuditError` with the findings in words.
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
