"""Tests of the plain transport: order, full sockets, stored ranges, and truncated files."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.net.stored import SENDFILE_BYTES
from kbroker.net.transport import JOIN_BYTES, PlainTransport
from kbroker.storage.files import File, MemFiles, OsFiles

from ..receiving import receive as receive_from
from ..receiving import receive_into

LARGE = bytes(range(256)) * (3 * SENDFILE_BYTES // 256)


@pytest.fixture
async def pair() -> AsyncIterator[tuple[PlainTransport, trio.SocketStream]]:
    """Yield a transport and the client end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = await trio.open_tcp_stream(*listening.getsockname())
        connected, _ = listening.accept()
    transport = PlainTransport(connected)
    yield transport, client
    transport.close()
    await client.aclose()


@pytest.fixture(params=["memory", "disk"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> File:
    if request.param == "disk":
        return OsFiles().open(str(tmp_path / "0.log"), create=True)
    files = MemFiles()
    files.mkdir("data")
    return files.open("data/0.log", create=True)


async def send_all(transport: PlainTransport, parts: list[Any]) -> None:
    left = transport.send_now(parts)
    while left:
        await transport.writable()
        left = transport.send_now(left)


async def receive(client: trio.SocketStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = await client.receive_some()
        assert more, f"the connection ended after {len(data)} bytes"
        data += more
    return bytes(data)


@pytest.mark.parametrize("size", [1, JOIN_BYTES, JOIN_BYTES + 1, len(LARGE)])
async def test_buffers_and_stored_ranges_arrive_in_order(
    pair: tuple[PlainTransport, trio.SocketStream], file: File, size: int
) -> None:
    transport, client = pair
    file.append([b"before", LARGE, b"after"])
    stored = file.range(6, size)
    parts = [b"head", stored, b"", b"middle", memoryview(LARGE)[:size], stored, b"tail"]
    wanted = b"head" + LARGE[:size] + b"middle" + LARGE[:size] * 2 + b"tail"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, transport, parts)
        assert await receive(client, len(wanted)) == wanted


async def test_small_parts_are_sent_together(
    pair: tuple[PlainTransport, trio.SocketStream], file: File
) -> None:
    """A fetch of a few records wakes its client once instead of three times."""
    transport, client = pair
    file.append([b"records"])
    assert transport.send_now([b"head", file.range(0, 7), b"tail"]) == []
    assert await client.receive_some() == b"headrecordstail"


async def test_send_to_full_socket_returns_unsent_parts(
    pair: tuple[PlainTransport, trio.SocketStream], file: File
) -> None:
    transport, client = pair
    file.append([LARGE])
    parts = [memoryview(LARGE)] * 8 + [file.range(0, len(LARGE))]
    left = transport.send_now(parts)
    assert sum(map(len, left)) < sum(map(len, parts))
    assert left
    left = transport.send_now(left)  # must not block
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, transport, left)
        assert await receive(client, 9 * len(LARGE)) == LARGE * 9


@pytest.mark.parametrize("size", [100, len(LARGE)])
async def test_send_of_truncated_file_raises_os_error(
    pair: tuple[PlainTransport, trio.SocketStream], tmp_path: Path, size: int
) -> None:
    transport, client = pair
    file = OsFiles().open(str(tmp_path / "0.log"), create=True)
    file.append([LARGE[:size]])
    promised = file.range(0, size)
    os.truncate(file.path, size // 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive, client, len(LARGE))
        with pytest.raises(OSError, match="shorter"):
            await send_all(transport, [b"head", promised])
        nursery.cancel_scope.cancel()


async def test_transport_receives_data_and_end_of_stream(
    pair: tuple[PlainTransport, trio.SocketStream],
) -> None:
    transport, client = pair
    await client.send_all(b"abcdef")
    buffer = bytearray(3)
    assert await receive_from(transport, 3) == b"abc"
    assert await receive_into(transport, memoryview(buffer)) == 3
    assert buffer == b"def"
    await client.send_eof()
    assert await receive_from(transport, 3) == b""
    assert await receive_into(transport, memoryview(buffer)) == 0


async def test_send_to_closed_client_raises_os_error(
    pair: tuple[PlainTransport, trio.SocketStream],
) -> None:
    transport, client = pair
    await client.aclose()
    with pytest.raises(OSError, match=r"pipe|reset"):
        await send_all(transport, [LARGE] * 10)


@pytest.mark.parametrize("call", ["close", "reset", "wake", "acknowledge", "peer_has_closed"])
async def test_call_after_close_does_not_raise(
    pair: tuple[PlainTransport, trio.SocketStream], call: str
) -> None:
    transport, _ = pair
    transport.close()
    getattr(transport, call)()
