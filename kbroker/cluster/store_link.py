"""Messages between a store and its clients in other processes of one machine."""

from __future__ import annotations

import json
import struct
from typing import Any

import trio

from .store import Change, Entry

Message = dict[str, Any]

RECEIVE_BYTES = 64 * 1024
_LENGTH = struct.Struct(">I")


class LinkBroken(Exception):
    """The other process has ended, or closed its end."""


class Link:
    """One end of a connection: JSON behind its length of four bytes. Call `aclose` at the end."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._received = bytearray()
        self._sending = trio.Lock()

    async def send(self, message: Message) -> None:
        """Send a message, whole also if the caller is cancelled. Raises LinkBroken."""
        data = json.dumps(message).encode()
        async with self._sending:
            with trio.CancelScope(shield=True):
                try:
                    await self._stream.send_all(_LENGTH.pack(len(data)) + data)
                except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    raise LinkBroken from error

    async def receive(self) -> Message:
        """The next message. Raises LinkBroken."""
        (length,) = _LENGTH.unpack(await self._receive(_LENGTH.size))
        message: Message = json.loads(await self._receive(length))
        return message

    async def _receive(self, size: int) -> bytes:
        while len(self._received) < size:
            try:
                part = await self._stream.receive_some(RECEIVE_BYTES)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise LinkBroken from error
            if not part:
                raise LinkBroken
            self._received += part
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    async def aclose(self) -> None:
        """Close it at once."""
        await trio.aclose_forcefully(self._stream)


def message_of(change: Change) -> Message:
    """A change, for who watches."""
    values = {key: entry and entry.value for key, entry in change.entries.items()}
    return {"change": change.revision, "values": values, "cause": change.cause}


def change_of(message: Message) -> Change:
    """The change that a message tells of."""
    revision = message["change"]
    entries = {
        key: None if value is None else Entry(value, revision)
        for key, value in message["values"].items()
    }
    return Change(revision, entries, message["cause"])
