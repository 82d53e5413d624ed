"""Spark integration: preconfigured sessions, a pure-Python Kafka source and sink, and helpers.

All modules talk to any Kafka broker over the wire protocol and import no broker code. Only the file
source in `source` also reads segment files, with `kbroker.protocol` and `kbroker.storage`. PySpark
is imported when a session is created, not when this package is imported.
"""

from .progress import commit_progress, lag
from .session import session

__all__ = ["commit_progress", "lag", "session"]
