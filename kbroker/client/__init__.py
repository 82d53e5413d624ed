"""Kafka client used by the command line, the health check and follower replicas.

`connection` is one connection to one broker. `cluster` finds the broker that a request belongs to.
The other modules each cover one family of requests, so that a short command imports only what it
needs. The client works with kbroker and with Apache Kafka 3.0 and newer.
"""

from .connection import Connection, connect
from .round_trip import check_round_trip

__all__ = ["Connection", "check_round_trip", "connect"]
