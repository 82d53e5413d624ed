"""The in-memory network: order, latency, cut links and closed connections."""

from __future__ import annotations

import pytest
import trio

from kbroker.client.endpoint import Endpoint

from ..receiving import receive
from .network import SLOW, WINDOW_BYTES, MemoryStream, MemoryTransport, Network, Socket
from .seeded import Events, Source, run

SERVER = Endpoint("server", 9092)


class Ends:
    """A network with one listener, and the sockets that it accepted."""

    def __init__(self, nursery: trio.Nursery, seed: int = 1) -> None:
        self.network = Network(Source(seed), Events())
        self.accepted: list[Socket] = []
        self.network.listen(SERVER, nursery, self._accept)

    async def _accept(self, socket: Socket, host: str) -> None:
        self.accepted.append(socket)

    async def connect(self) -> tuple[MemoryStream, MemoryTransport]:
        stream = await self.network.dial("client", SERVER)
        await trio.testing.wait_all_tasks_blocked()
        return stream, MemoryTransport(self.accepted[-1])


async def read(stream: MemoryStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await stream.receive_some()
        assert more
        data += more
    return data


def test_bytes_arrive_delayed_and_in_order() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            ends = Ends(nursery)
            ends.network.link("server", "client").seconds = SLOW
            stream, transport = await ends.connect()
            began = trio.current_time()
            for number in range(100):
                assert transport.send_now([b"%03d" % number]) == []
            assert await read(stream, 300) == b"".join(b"%03d" % n for n in range(100))
            assert trio.current_time() - began >= SLOW[0]

    run(main, 1)


def test_full_window_blocks_sender() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            stream, transport = await Ends(nursery).connect()
            left = transport.send_now([bytes(WINDOW_BYTES), b"more"])
            assert left == [b"more"]
            with trio.move_on_after(1):
                await transport.writable()
                raise AssertionError("the full window accepted more bytes")
            await read(stream, WINDOW_BYTES)
            await transport.writable()
            assert transport.send_now(left) == []
            assert await read(stream, 4) == b"more"

    run(main, 1)


def test_cut_link_delays_bytes_until_it_is_healed() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            ends = Ends(nursery)
            stream, transport = await ends.connect()
            ends.network.cut("client", "server")
            await stream.send_all(b"question")
            transport.send_now([b"answer"])  # the other direction is not cut
            assert await read(stream, 6) == b"answer"
            with trio.move_on_after(5) as scope:
                await receive(transport, 100)
            assert scope.cancelled_caught
            with trio.move_on_after(5) as scope:
                await ends.network.dial("client", SERVER)
            assert scope.cancelled_caught
            ends.network.heal("client", "server")
            assert await receive(transport, 100) == b"question"

    run(main, 1)


def test_bytes_sent_before_kill_still_arrive() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            ends = Ends(nursery)
            stream, transport = await ends.connect()
            transport.send_now([b"last words"])
            ends.network.kill("server", quietly=False)
            assert await stream.receive_some() == b"last words"
            assert await stream.receive_some() == b""
            with pytest.raises(trio.BrokenResourceError):
                await stream.send_all(b"?")
            with pytest.raises(OSError, match="refuses"):
                await ends.network.dial("client", SERVER)

    run(main, 1)


def test_host_without_power_resets_connections_only_after_restart() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            ends = Ends(nursery)
            stream, _ = await ends.connect()
            ends.network.kill("server", quietly=True)
            await stream.send_all(b"?")
            with trio.move_on_after(60) as scope:
                await stream.receive_some()
            assert scope.cancelled_caught
            ends.network.listen(SERVER, nursery, ends._accept)
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()

    run(main, 1)


def test_same_seed_gives_same_network_events() -> None:
    async def main() -> tuple[int, float]:
        async with trio.open_nursery() as nursery:
            ends = Ends(nursery, seed)
            streams = [await ends.connect() for _ in range(3)]
            async with trio.open_nursery() as senders:
                for number, (stream, _) in enumerate(streams):
                    senders.start_soon(stream.send_all, b"%d" % number)
            for _, transport in streams:
                await receive(transport, 1)
        return ends.network._events.digest, trio.current_time()

    seed = 1
    first, second = run(main, 1), run(main, 1)
    assert first == second
    seed = 2
    assert run(main, 2) != first
