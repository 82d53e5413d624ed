"""Client activity of a node: requests, errors and disconnects, for the web console.

`Node.activity` is None if the node has no HTTP server, so that nothing is counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded
from kbroker.protocol.errors import ErrorCode
from kbroker.security.principals import ANONYMOUS

from .request_metrics import codes_of

# Maximum number of client IDs. The least recently active one is dropped.
CLIENTS_MAX = 1_000
EVENTS_MAX = 1_000
# Maximum number of characters of a client ID, and of a reason.
NAME_MAX = 256
# Maximum number of denied topics in an event, and of rows that are searched for them.
TOPICS_SHOWN_MAX = 3
TOPICS_SCANNED_MAX = 100
_TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
# Fields with the topics of a response, and with the partitions of a topic.
_TOPIC_ROWS: Final = ("topics", "responses", "results")
_PARTITION_ROWS: Final = ("partitions", "partition_responses")
# Errors that are part of the protocol: clients wait, look up the right broker, or send the request in
# another way. They count as errors, but not as problems.
EXPECTED_ERRORS = frozenset(
    (
        # Metadata and leaders: creation, moves and elections.
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.ELECTION_NOT_NEEDED,
        # Coordinators: start and moves.
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        # Groups: joining, rebalances, and groups that do not exist yet.
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        # Transactions: the end of the previous one.
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        # Sessions that the broker evicted, and telemetry subscriptions that changed.
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
    )
)


@dataclass(slots=True)
class ClientActivity:
    """Activity of all clients with one client ID.

    Attributes:
        software: Client software name and version.
        principal: Principal of the most recent client.
        host: Address of the most recent client.
        requests: Number of requests by API key.
        errors: Number of response rows with an error, by API key and error code.
        disconnects: Number of closed connections by cause, such as `closed by client`.
        last_at_ms: Time of the last request.
    """

    software: str = ""
    principal: str = ""
    host: str = ""
    requests: Counter[int] = field(default_factory=Counter)
    errors: Counter[tuple[int, int]] = field(default_factory=Counter)
    disconnects: Counter[str] = field(default_factory=Counter)
    last_at_ms: int = 0


@dataclass(slots=True)
class ClientEvent:
    """An event of a client, which may have occurred several times in a row.

    Attributes:
        number: Sequence number of the last occurrence.
        at_ms: Time of the last occurrence.
        client_id: Client ID.
        host: Address of the client.
        text: Description.
        is_problem: True if the event is a problem.
        times: Number of occurrences.
    """

    number: int
    at_ms: int
    client_id: str
    host: str
    text: str
    is_problem: bool
    times: int = 1


class Activity:
    """Client activity of one node.

    Args:
        now_ms: Returns the time in milliseconds since the epoch.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        # By client ID, the most recently active one last.
        self.clients: dict[str, ClientActivity] = {}
        self.events: deque[ClientEvent] = deque(maxlen=EVENTS_MAX)
        self._now_ms = now_ms
        self._number = 0

    def count_request(self, peer: Any, client_id: str | None, key: int) -> None:
        """Count a request."""
        name = (client_id or "")[:NAME_MAX]
        client = self._client(name)
        client.requests[key] += 1
        client.last_at_ms = self._now_ms()
        if client.software != peer.software and peer.software:
            client.software = peer.software  # set by ApiVersions
        if peer.client_id != name:
            peer.client_id = name
            client.host = peer.host
            if _has_principal(peer):
                client.principal = str(peer.client.principal)
            self._record_event(name, peer.host, "connected", is_problem=False)

    def record_login(self, peer: Any) -> None:
        """Record the principal of a client that has authenticated with SASL."""
        name, principal = peer.client_id or "", str(peer.client.principal)
        self._client(name).principal = principal
        self._record_event(name, peer.host, f"authenticated as {principal}", is_problem=False)

    def count_response(self, peer: Any, client_id: str | None, key: int, response: Any) -> None:
        """Count the errors of a response, in its first rows."""
        if type(response) is Encoded:
            return
        codes = Counter(code for code in codes_of(key, response) if code)
        if not codes:
            return
        name = (client_id or "")[:NAME_MAX]
        client = self._client(name)
        user = ""
        if _has_principal(peer):
            client.principal = str(peer.client.principal)
            user = f" of {client.principal}" if peer.client.principal != ANONYMOUS else ""
        for code, count in codes.items():
            client.errors[key, code] += count
            text = f"{ApiKey(key).api_name}{user} returned {error_name(code)}"
            topics = _denied_topics(response) if code == _TOPIC_DENIED else ""
            text += f" for {topics}" if topics else ""
            self._record_event(name, peer.host, text, is_problem=is_problem(key, code))

    def count_disconnect(self, peer: Any, kind: str, reason: str = "") -> None:
        """Count a closed connection.

        Args:
            peer: The client.
            kind: Cause: `closed by client`, `closed by broker` or `reset`.
            reason: Details if the node closed the connection.
        """
        name = peer.client_id or ""
        if name in self.clients:
            self.clients[name].disconnects[kind] += 1
        text = f"connection {kind}"
        text += f": {reason[:NAME_MAX]}" if reason else ""
        self._record_event(name, peer.host, text, is_problem=bool(reason))

    def _client(self, name: str) -> ClientActivity:
        client = self.clients.pop(name, None)
        if client is None:
            if len(self.clients) >= CLIENTS_MAX:
                del self.clients[next(iter(self.clients))]
            client = ClientActivity()
        self.clients[name] = client
        return client

    def _record_event(self, client_id: str, host: str, text: str, *, is_problem: bool) -> None:
        self._number += 1
        last = self.events[-1] if self.events else None
        now = self._now_ms()
        if last and (last.client_id, last.host, last.text) == (client_id, host, text):
            last.number, last.at_ms, last.times = self._number, now, last.times + 1
            return
        self.events.append(ClientEvent(self._number, now, client_id, host, text, is_problem))

    def since(self, number: int) -> Iterable[ClientEvent]:
        """Return the events after a sequence number, oldest first."""
        return [each for each in self.events if each.number > number]


def _has_principal(peer: Any) -> bool:
    """Return False before the SASL authentication of a client, which has no principal yet."""
    return peer.login is None or bool(peer.login.has_session)


def _denied_topics(response: Any) -> str:
    """Return the names of the first topics that a response denies, or "" if it has only IDs."""
    denied = dict[str, None]()
    for rows in _TOPIC_ROWS:
        for row in islice(getattr(response, rows, None) or (), TOPICS_SCANNED_MAX):
            name = getattr(row, "name", None) or getattr(row, "topic", None)
            if name and _TOPIC_DENIED in _row_codes(row):
                denied[str(name)] = None
    names = list(denied)
    shown = ", ".join(names[:TOPICS_SHOWN_MAX])
    return shown + (", ..." if len(names) > TOPICS_SHOWN_MAX else "")


def _row_codes(row: Any) -> set[int]:
    """Return the error code of a row of a topic, or those of its first partitions."""
    codes = {getattr(row, "error_code", 0)}
    for rows in _PARTITION_ROWS:
        partitions = islice(getattr(row, rows, None) or (), TOPICS_SCANNED_MAX)
        codes.update(getattr(each, "error_code", 0) for each in partitions)
    return codes


def is_problem(key: int, code: int) -> bool:
    """Return False if an error is part of the protocol, so that a working client may cause it."""
    if key == ApiKey.API_VERSIONS and code == ErrorCode.UNSUPPORTED_VERSION:
        return False  # a newer client asks again with an older version
    return code not in EXPECTED_ERRORS


def error_name(code: int) -> str:
    """Return the name of an error code, or its number if it has no name."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
