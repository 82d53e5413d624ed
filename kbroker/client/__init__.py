"""The one thin outgoing client: the self check, the command line and followers speak through it.

`connection` is one connection to one broker; `cluster` finds the broker that a request belongs to.
Beside them is one module per family of requests, named as in `kbroker.protocol.messages`, so that a
short command imports only what it needs. It speaks to kbroker and to Apache Kafka 3.0 and newer.
"""

from .connection import Connection, connect
from .round_trip import check_round_trip

__all__ = ["Connection", "check_round_trip", "connect"]
