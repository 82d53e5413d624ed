"""What each client of a node asks for, what goes wrong for it, and when it leaves.

Counted only while somebody may look: `Node.activity` is None otherwise, and then it costs nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded
from kbroker.protocol.errors import ErrorCode

from .request_metrics import codes_of

CLIENTS_MAX = 1_000
"""Of more than these, the one that asked for nothing for the longest is forgotten."""
EVENTS_MAX = 1_000
NAME_MAX = 256
"""Characters of a client id, and of a reason."""


@dataclass(slots=True)
class ClientActivity:
    """What clients of one id have asked for."""

    software: str = ""
    principal: str = ""
    host: str = ""
    requests: Counter[int] = field(default_factory=Counter)
    """By API key."""
    errors: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Rows of answers, by API key and error code."""
    disconnects: Counter[str] = field(default_factory=Counter)
    """By how the connection ended: `left`, `refused`, `cut off`."""
    last_at_ms: int = 0


@dataclass(slots=True)
class Happening:
    """Something that is worth a line; `times` it happened in a row."""

    number: int
    at_ms: int
    client_id: str
    host: str
    text: str
    is_trouble: bool
    times: int = 1


class Activity:
    """That of one node. `now_ms` is the time of its log."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.clients: dict[str, ClientActivity] = {}
        """By client id; who was there last stands last."""
        self.happenings: deque[Happening] = deque(maxlen=EVENTS_MAX)
        self._now_ms = now_ms
        self._number = 0

    def asks(self, peer: Any, client_id: str | None, key: int) -> None:
        """A request has come."""
        name = (client_id or "")[:NAME_MAX]
        client = self._client(name)
        client.requests[key] += 1
        client.last_at_ms = self._now_ms()
        if client.software != peer.software and peer.software:
            client.software = (
                peer.software
            )  # which the first request has told, or a login before it
        if peer.client_id != name:
            peer.client_id = name
            client.host, client.principal = peer.host, str(peer.client.principal)
            self._note(name, peer.host, "came", is_trouble=False)

    def answers(self, peer: Any, client_id: str | None, key: int, response: Any) -> None:
        """A request is answered: what is an error in that is counted, in its first rows."""
        if type(response) is Encoded:
            return
        codes = Counter(code for code in codes_of(key, response) if code)
        if not codes:
            return
        name = (client_id or "")[:NAME_MAX]
        client = self._client(name)
        client.principal = str(peer.client.principal)
        for code, count in codes.items():
            client.errors[key, code] += count
            text = f"{ApiKey(key).api_name} was answered {error_name(code)}"
            self._note(name, peer.host, text, is_trouble=True)

    def leaves(self, peer: Any, kind: str, reason: str = "") -> None:
        """A connection has ended; `reason` says more where it is not the client's own will."""
        name = peer.client_id or ""
        if name in self.clients:
            self.clients[name].disconnects[kind] += 1
        text = f"{kind}: {reason[:NAME_MAX]}" if reason else kind
        self._note(name, peer.host, text, is_trouble=bool(reason))

    def _client(self, name: str) -> ClientActivity:
        client = self.clients.pop(name, None)
        if client is None:
            if len(self.clients) >= CLIENTS_MAX:
                del self.clients[next(iter(self.clients))]
            client = ClientActivity()
        self.clients[name] = client
        return client

    def _note(self, client_id: str, host: str, text: str, *, is_trouble: bool) -> None:
        self._number += 1
        last = self.happenings[-1] if self.happenings else None
        now = self._now_ms()
        if last and (last.client_id, last.host, last.text) == (client_id, host, text):
            last.number, last.at_ms, last.times = self._number, now, last.times + 1
            return
        self.happenings.append(Happening(self._number, now, client_id, host, text, is_trouble))

    def since(self, number: int) -> Iterable[Happening]:
        """What happened after the one of that number, oldest first."""
        return [each for each in self.happenings if each.number > number]


def error_name(code: int) -> str:
    """An error code by its name, a number where it has none."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
