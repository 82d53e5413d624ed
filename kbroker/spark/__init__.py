"""Spark and Kafka: sessions that find their connector, and a source and sink that need none.

Everything here speaks to any Kafka over the wire and imports no code of the broker; `source` alone
reads segment files with `kbroker.protocol` and `kbroker.storage`. PySpark is imported when a session
is made, never before.
"""

from .progress import commit_progress, lag
from .session import session

__all__ = ["commit_progress", "lag", "session"]
