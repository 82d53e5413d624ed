"""Tests of full disks: a file size limit, a small file system, and a read-only one."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import DeleteRecordsRequest

from ..kill.server import Server
from ..machine import LOCAL
from ..net.test_server import commit, committed
from ..replication.cluster import NODES, Cluster, wait_until
from ..wire import (
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    fetch,
    produce,
    values_of,
)

DISK_BYTES = 30_000_000
FILE_BYTES_MAX = 300_000
VALUE = bytes(100_000)
Work = Callable[[Wire], Awaitable[Any]]


@contextmanager
def mounted(directory: Path, *options: str) -> Iterator[None]:
    """Mount a file system on a directory; skip the test without the permission to mount."""
    directory.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", *options, directory], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@contextmanager
def closing(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        server.close()


def run_with_wire(port: int, work: Work) -> Any:
    async def main() -> Any:
        with trio.fail_after(60):
            async with connected((LOCAL.address, port)) as wire:
                return await work(wire)

    return trio.run(main)


async def fill(wire: Wire) -> list[bytes | None]:
    """Produce until a record is rejected. Return the accepted values."""
    accepted: list[bytes | None] = []
    while True:
        value = b"%d" % len(accepted) + VALUE
        row = await produce(wire, Topic("t"), batch([value]), timeout_ms=20_000)
        if row.error_code:
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            return accepted
        accepted.append(value)


def fill_disk(path: Path) -> None:
    """Fill a disk to the last byte."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(VALUE):
            pass


async def code_of_produce(wire: Wire) -> int:
    return int((await produce(wire, Topic("t"), batch([b"more"]))).error_code)


async def read_all(wire: Wire, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        found += values_of(await fetch(wire, Topic("t"), len(found)))
    return found


async def trim(wire: Wire, before: int) -> None:
    rows = [DeleteRecordsRequest.Partition(partition_index=0, offset=before)]
    topics = [DeleteRecordsRequest.Topic(name="t", partitions=rows)]
    response = await wire.ask(ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest(topics=topics))
    assert response.topics[0].partitions[0].error_code == 0


def await_produce(server: Server) -> None:
    wait_until(
        lambda: run_with_wire(server.port, code_of_produce) == 0,
        lambda: server.log_path.read_text(),
    )


@pytest.mark.slow
def test_file_size_limit_rejects_records(tmp_path: Path) -> None:
    """The limit acts like a disk quota and needs no administrator."""
    topics = ("t:1:internal.segment.bytes=1000000",)
    with closing(Server(tmp_path, (), topics)) as server:
        assert server.process is not None
        run_with_wire(server.port, lambda wire: commit(wire, "readers", "t", 1))
        before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, before[1]))
        accepted = run_with_wire(server.port, fill)
        assert len(accepted) == 2
        assert run_with_wire(server.port, code_of_produce) == ErrorCode.KAFKA_STORAGE_ERROR
        assert run_with_wire(server.port, lambda wire: read_all(wire, len(accepted))) == accepted
        assert run_with_wire(server.port, lambda wire: committed(wire, "readers", "t")) == 1
        run_with_wire(server.port, lambda wire: trim(wire, 1))
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)
        await_produce(server)
        log_text = server.log_path.read_text()
        assert log_text.count("is read-only: ") == log_text.count("is writable again") == 1
        assert "File too large" in log_text


@pytest.mark.slow
def test_broker_recovers_on_full_disk_of_30_megabytes(tmp_path: Path) -> None:
    """Fill, kill, start and free the disk; fill it again while the broker is down, and free it."""
    server = Server(tmp_path, (), ("t:1:internal.segment.bytes=1000000",))
    options = ("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none")
    with mounted(server.data, *options), closing(server):
        accepted = run_with_wire(server.port, fill)
        assert len(accepted) > DISK_BYTES * 0.8 / len(VALUE)
        server.kill()
        start_on_full_disk(server)
        assert run_with_wire(server.port, lambda wire: read_all(wire, len(accepted))) == accepted
        run_with_wire(server.port, lambda wire: trim(wire, len(accepted) // 2))
        await_produce(server)
        server.kill()
        fill_disk(server.data / "other-data")
        start_on_full_disk(server)
        run_with_wire(server.port, lambda wire: delete_topic(wire, "t"))
        run_with_wire(server.port, lambda wire: create_topic(wire, "t"))
        await_produce(server)


def start_on_full_disk(server: Server) -> None:
    """Start a broker that accepts no records, and check that one log line says why."""
    server.start()
    assert run_with_wire(server.port, code_of_produce) == ErrorCode.KAFKA_STORAGE_ERROR
    errors = [line for line in server.log_path.read_text().splitlines() if " ERROR " in line]
    assert len(errors) == 1, errors
    assert "is read-only: the disk of" in errors[0]
    assert "kbroker topic trim" in errors[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_full_disk_of_one_node_affects_only_that_node(tmp_path: Path, kind: str) -> None:
    """The node leaves the ISRs, and rejoins when its disk has space."""
    cluster = Cluster(tmp_path, topics=("t:1:internal.segment.bytes=500000",), names=("t",))
    node = cluster.data / "node-2"
    options = ("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none")
    with mounted(node, *options), closing(cluster):
        cluster.await_in_sync([("t", 0)])
        other_data = node / "other-data"
        if kind == "full":
            fill_disk(other_data)
            _check_writes_without(cluster, 2)
            other_data.unlink()
        else:
            with mounted(node, "--bind", "-o", "ro", node.as_posix()):
                _check_writes_without(cluster, 2)
        cluster.await_in_sync([("t", 0)])


def _check_writes_without(cluster: Cluster, node: int) -> None:
    """Check that acks=all batches are acknowledged once the node is out of the ISR."""

    def is_out() -> bool:
        _, port = cluster.await_leader(("t", 0))
        with_all = run_with_wire(
            port, lambda wire: produce(wire, Topic("t"), batch([VALUE]), timeout_ms=5000)
        )
        assert with_all.error_code in (0, *_MOVED_LEADER_ERRORS), cluster.log_path.read_text()
        return cluster.partition_states()["t", 0].in_sync == set(NODES) - {node}

    wait_until(is_out, lambda: cluster.log_path.read_text())


_MOVED_LEADER_ERRORS = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
