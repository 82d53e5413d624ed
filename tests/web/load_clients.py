"""Client processes that load the broker while the console is measured.

Usage: python -m tests.web.load_clients ROLE PORT; for `watch`, the port is that of HTTP. Each process
prints when it has begun, and runs until its input ends. `acks` then prints its measurements as a
line of JSON.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections.abc import Iterator

from kbroker.protocol.api_keys import ApiKey

from ..blocking import BlockingWire
from ..wire import Topic, batch, produce_request

FED, POLITE = Topic("fed"), Topic("polite")
FED_PER_SECOND, FED_AT_ONCE = 5_000, 50
VALUE = b'{"order": 123456, "customer": "c42", "country": "DE", "text": "some words about it"}'
PAUSE_SECONDS = 0.005
HOST = "127.0.0.1"


def report_begin() -> None:
    print("begun", flush=True)


def _ticks_until_end() -> Iterator[None]:
    """Yield repeatedly until the input has data or has ended."""
    report_begin()
    while not select.select([0], [], [], 0)[0]:
        yield


def feed(port: int) -> None:
    """Produce records at a steady rate, and catch up after delays."""
    wire, wanted = BlockingWire(HOST, port, "feed"), batch([VALUE] * FED_AT_ONCE)
    due = time.monotonic()
    for _ in _ticks_until_end():
        response = wire.ask(ApiKey.PRODUCE, 9, produce_request(FED, wanted))
        assert not response.responses[0].partition_responses[0].error_code
        due += FED_AT_ONCE / FED_PER_SECOND
        time.sleep(max(due - time.monotonic(), 0))


def acks(port: int) -> None:
    """Measure the acknowledgement times of single small records, in seconds."""
    wire, waits = BlockingWire(HOST, port, "polite"), []
    wire.ask(ApiKey.PRODUCE, 9, produce_request(POLITE, batch()))
    for _ in _ticks_until_end():
        began = time.perf_counter()
        wire.ask(ApiKey.PRODUCE, 9, produce_request(POLITE, batch()))
        waits.append(time.perf_counter() - began)
        time.sleep(PAUSE_SECONDS)
    waits.sort()
    found = {"p50": waits[len(waits) // 2], "p99": waits[len(waits) * 99 // 100]}
    print(json.dumps(found | {"worst": waits[-1], "count": len(waits)}))


def watch(port: int) -> None:
    """Receive a live view without displaying it."""
    with socket.create_connection((HOST, port)) as stream:
        path = f"/api/v1/topics/{FED.name}/live"
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        report_begin()
        stdin, descriptor = 0, stream.fileno()
        while True:
            ready, _, _ = select.select([stdin, descriptor], [], [])
            if stdin in ready or not stream.recv(1 << 20):
                return


ROLES = {"feed": feed, "acks": acks, "watch": watch}

if __name__ == "__main__":
    ROLES[sys.argv[1]](int(sys.argv[2]))
