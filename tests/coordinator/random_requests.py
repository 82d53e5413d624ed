"""Random requests of group members: values that interact, and extreme values."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from kbroker.coordinator import ClientInfo, PendingResponse, Result
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kbroker.protocol.messages.offsets import OffsetDeleteRequest

from .harness import Harness, subscription, travel

T = TypeVar("T")


class RandomRequests:
    """Clients that send random requests, using member IDs from earlier responses."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._known = [""]

    def send(self, h: Harness) -> tuple[str, Result[Any]]:
        """Send one request of a random version, and return its name and its result."""
        newest = {
            self._join: 9,
            self._sync: 5,
            self._heartbeat: 4,
            self._leave: 5,
            self._commit: 10,
            self._delete_offsets: 0,
        }
        make, version = self._rng.choices(list(newest.items()), (6, 3, 2, 1, 2, 1))[0]
        return make.__name__.removeprefix("_"), make(h, self._rng.randrange(version + 1))

    def look_around(self, h: Harness) -> Harness:
        """Describe groups; sometimes let time pass or restart the coordinator."""
        h.describe(self._text())
        h.fetch(None, group=self._text())
        h.coordinator.list_groups([self._text()], [self._text()])
        if self._rng.random() < 0.05:
            h.sleep(self._rng.choice([0, 5_000, 40_000]))
        if self._rng.random() < 0.01:
            h.delete_groups("g", self._text())
            return h.restarted()
        return h

    # Requests

    def _join(self, h: Harness, version: int) -> Result[Any]:
        request = JoinGroupRequest(
            group_id=self._group(),
            session_timeout_ms=self._choose_usual(10_000, self._number(32)),
            rebalance_timeout_ms=self._number(32),
            member_id=self._choose_usual(self._rng.choice(["", self._known[-1]]), self._text()),
            group_instance_id=self._maybe(),
            protocol_type=self._choose_usual("consumer", self._text()),
            protocols=self._choose_usual([JoinGroupRequest.Protocol(name="a")], [])
            + self._several(
                lambda: JoinGroupRequest.Protocol(name=self._text(), metadata=self._blob())
            ),
            reason=self._maybe(),
        )
        client = ClientInfo(self._text(), self._text())
        result = h.coordinator.join(travel(request, version), client, h.now, version)
        response = result.response
        if isinstance(response, PendingResponse) or (
            response is not None and response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        ):
            self._known.append(response.member_id)
        return result

    def _sync(self, h: Harness, version: int) -> Result[Any]:
        request = SyncGroupRequest(
            group_id=self._group(),
            generation_id=self._number(32),
            member_id=self._known[-1],
            group_instance_id=self._maybe(),
            protocol_type=self._maybe(),
            protocol_name=self._maybe(),
            assignments=self._several(
                lambda: SyncGroupRequest.Assignment(member_id=self._text(), assignment=self._blob())
            ),
        )
        return h.coordinator.sync(travel(request, version), h.now, version)

    def _heartbeat(self, h: Harness, version: int) -> Result[Any]:
        request = HeartbeatRequest(
            group_id=self._group(),
            generation_id=self._number(32),
            member_id=self._known[-1],
            group_instance_id=self._maybe(),
        )
        return h.coordinator.heartbeat(travel(request, version), h.now)

    def _leave(self, h: Harness, version: int) -> Result[Any]:
        request = LeaveGroupRequest(
            group_id=self._group(),
            member_id=self._text(),
            members=self._several(
                lambda: LeaveGroupRequest.Member(
                    member_id=self._text(), group_instance_id=self._maybe()
                )
            ),
        )
        return h.coordinator.leave(travel(request, version), h.now, version)

    def _commit(self, h: Harness, version: int) -> Result[Any]:
        request = h.commit_request(
            {(self._text(), self._number(32)): self._number(64) for _ in range(3)},
            self._text(),
            self._number(32),
            group=self._group(),
            instance=self._maybe(),
            metadata=self._maybe(),
            retention_ms=self._number(64),
            leader_epoch=self._number(32),
            commit_timestamp=self._number(64),
        )
        return h.coordinator.offsets.commit(travel(request, version), h.now, version)

    def _delete_offsets(self, h: Harness, version: int) -> Result[Any]:
        def topic() -> OffsetDeleteRequest.Topic:
            return OffsetDeleteRequest.Topic(name=self._text(), partitions=[partition])

        partition = OffsetDeleteRequest.Partition(partition_index=self._number(32))
        request = OffsetDeleteRequest(group_id=self._text(), topics=self._several(topic))
        return h.coordinator.offsets.delete(request)

    # Fields

    def _text(self) -> str:
        few = ["", "g", "range", "consumer", "orders", "x\n" * 16_000]
        return self._rng.choice([*few, *self._known[-4:]])

    def _choose_usual(self, usual: T, other: T) -> T:
        return usual if self._rng.random() < 0.9 else other

    def _group(self) -> str:
        return self._choose_usual(self._rng.choice("gh"), self._text())

    def _number(self, bits: int) -> int:
        top = 2 ** (bits - 1)
        chosen: int = self._rng.choice([0, 1, 2, 3, -1, 6_000, 30_000, 60_000, -top, top - 1])
        return chosen

    def _maybe(self) -> str | None:
        return self._choose_usual(None, self._text())

    def _blob(self) -> bytes:
        return self._rng.choice([b"", b"\x00", subscription("orders"), self._rng.randbytes(20)])

    def _several(self, make: Callable[[], T]) -> list[T]:
        return [make() for _ in range(self._rng.randrange(4))]
