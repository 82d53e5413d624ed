"""Messages between a metadata store and its clients in other processes of the machine."""

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
    """The connection was closed, usually because the other process terminated."""


class Link:
    """One end of a connection; messages are JSON with a four-byte length prefix. Call `aclose`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._received = bytearray()
        self._sending = trio.Lock()

    async def send(self, message: Message) -> None:
        """Send a message completely, even if the caller is cancelled. Raises LinkBroken."""
        data = json.dumps(message).encode()
        async with self._sending:
            with trio.CancelScope(shield=True):
                try:
                    await self._stream.send_all(_LENGTH.pack(len(data)) + data)
                except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    raise LinkBroken from error

    async def receive(self) -> Message:
        """Return the next message. Raises LinkBroken."""
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
        """Close the connection immediately."""
        await trio.aclose_forcefully(self._stream)


def message_of(change: Change) -> Message:
    """Return the message that announces a change to a client."""
    values = {key: entry and entry.value for key, entry in change.entries.items()}
    return {"change": change.revision, "values": values, "cause": change.cause}


def change_of(message: Message) -> Change:
    """Parse the message that announces a change."""
    revision = message["change"]
    entries = {
        key: None if value is None else Entry(value, revision)
        for key, value in message["values"].items()
    }
    return Change(revision, entries, message["cause"])
