"""Tests that rejected starts leave no changes, and that no client can connect during them."""

from __future__ import annotations

import shutil
import socket
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

from kbroker.broker import Broker, open_broker
from kbroker.broker.local_node import LocalNode
from kbroker.config import BrokerConfig
from kbroker.data_dirs.data_directories import DataDirectories
from kbroker.net.server import CannotListen, Listener, Server
from kbroker.node.node import Node
from kbroker.storage.errors import StorageError

from ..brokers import started
from ..wire import batch, connected, create_topic, produce

Image = dict[str, bytes | None]


def image(directory: Path) -> Image:
    """Return the content of all files below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


async def check_rejected(
    root: Path, reason: str, start: AbstractAsyncContextManager[Broker]
) -> None:
    """Check that a start fails with a reason and changes no file."""
    before = image(root)
    with pytest.raises((StorageError, ValueError, CannotListen), match=reason):
        await start.__aenter__()
    assert image(root) == before


def source_tree(directory: Path) -> Path:
    (directory / "src").mkdir(parents=True)
    (directory / "src" / "main.py").write_text("print()")
    return directory


def directory_with_a_number(directory: Path) -> Path:
    (directory / "x-1").mkdir(parents=True)
    (directory / "x-1" / "notes.txt").write_text("mine")
    return directory


def home_with_nodes(directory: Path) -> Path:
    (directory / "node-20").mkdir(parents=True)
    (directory / "node-20" / "package.json").write_text("{}")
    return directory


@pytest.mark.parametrize("make", [source_tree, directory_with_a_number, home_with_nodes])
@pytest.mark.parametrize("nodes", [1, 3])
async def test_directory_of_other_program_is_rejected(
    tmp_path: Path, make: object, nodes: int
) -> None:
    assert callable(make)
    directory = make(tmp_path / "work")
    await check_rejected(
        tmp_path,
        "is not a data directory: it contains .* set --data-dir to an empty",
        started(directory, nodes=nodes),
    )
    await check_rejected(
        tmp_path, "is not a data directory", started([tmp_path / "new", directory])
    )


async def test_file_as_data_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    await check_rejected(tmp_path, "is a file; set a directory", started(tmp_path / "data"))


async def test_leftovers_of_file_system_or_crash_are_ignored(tmp_path: Path) -> None:
    for name in ("lost+found", "node-1"):
        (tmp_path / name).mkdir()
    revision = ("metadata.revision", "metadata.revision.tmp")
    for name in (".lock", "meta.properties.tmp", "node-1/.lock", *revision):
        (tmp_path / name).touch()
    async with started(tmp_path, nodes=2):
        pass


async def test_directories_of_different_clusters_are_rejected(tmp_path: Path) -> None:
    one, two, new = (tmp_path / name for name in ("one", "two", "new"))
    for each in (one, two):
        async with started(each) as broker, connected(broker.endpoint) as wire:
            await produce(wire, await create_topic(wire, "t"), batch())
    shutil.copytree(one, tmp_path / "copy")
    cases = [
        ([one, two, new], 1, "belongs to cluster"),
        ([one, tmp_path / "copy", new], 1, "is a copy of"),
        ([one, new], 2, "start with node.id=1"),
    ]
    for directories, node_id, reason in cases:
        await check_rejected(tmp_path, reason, started(directories, node_id=node_id))


async def test_missing_directory_is_rejected(tmp_path: Path) -> None:
    async with started([tmp_path / "one", tmp_path / "two"]):
        pass
    shutil.rmtree(tmp_path / "two")
    await check_rejected(
        tmp_path,
        "is missing; its partitions would start empty",
        started([tmp_path / "one", tmp_path / "new"]),
    )


async def test_missing_or_corrupt_metadata_is_rejected(tmp_path: Path) -> None:
    one, new = tmp_path / "one", tmp_path / "new"
    async with started(one) as broker, connected(broker.endpoint) as wire:
        await produce(wire, await create_topic(wire, "t"), batch())
    journal = one / "cluster.journal"
    sound = journal.read_bytes()
    journal.write_bytes(sound[:40] + b"X" + sound[41:])
    await check_rejected(tmp_path, "line 1 is damaged", started([one, new]))
    journal.unlink()
    await check_rejected(tmp_path, r"no cluster\.journal", started([one, new]))
    journal.write_bytes(sound)
    async with started([one, new]) as broker:
        assert not broker.node.partitions.logs.managers[1].clean  # the directory is new
        assert broker.node.partitions.logs.managers[0].clean, "a rejected start is not a crash"


async def test_port_in_use_is_rejected(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = Listener("PLAINTEXT", "127.0.0.1", taken.getsockname()[1])
        data = str(tmp_path / "data")
        start = open_broker(BrokerConfig.load(), data_dir=data, listeners=[listener])
        await check_rejected(tmp_path, "is in use", start)


@pytest.mark.parametrize("step", ["open_logs", "create_node"])
async def test_connections_are_refused_until_directories_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Clients get an error at once, and do not wait for a broker that never starts."""
    rejected = []
    owner = DataDirectories if step == "open_logs" else LocalNode
    original = getattr(owner, step)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def check_port() -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        rejected.append(port)

    if step == "open_logs":

        def open_logs(*args: object) -> object:
            check_port()
            return original(*args)

        monkeypatch.setattr(owner, step, open_logs)
    else:

        async def create_node(*args: object) -> object:
            check_port()
            return await original(*args)

        monkeypatch.setattr(owner, step, create_node)
    async with open_broker(
        BrokerConfig.load(),
        data_dir=str(tmp_path / "data"),
        listeners=[Listener("PLAINTEXT", "127.0.0.1", port)],
    ) as broker:
        assert rejected == [port]
        async with connected(broker.endpoint) as wire:
            await create_topic(wire, "t")
        with trio.fail_after(10):
            await broker.nodes[0].stop()
            await broker.nodes[0].start()
        assert rejected == [port, port]


async def test_created_files_are_accessible_only_to_owner(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (tmp_path / "given").mkdir(mode=0o755)
    async with (
        started([data, tmp_path / "given"]) as broker,
        connected(broker.endpoint) as wire,
    ):
        topic = await create_topic(wire, "t", 4)
        for index in range(4):
            await produce(wire, topic, batch(), partition=index)
        await broker.node.maintenance.log_manager_tasks.checkpoint()
    paths = [data, *data.rglob("*"), *(tmp_path / "given").rglob("*")]
    assert len(paths) > 20
    for path in paths:
        wanted = 0o700 if path.is_dir() else 0o600
        assert path.stat().st_mode & 0o777 == wanted, path
    assert (tmp_path / "given").stat().st_mode & 0o777 == 0o755, "the directory existed before"


@pytest.mark.parametrize("nodes", [1, 3])
async def test_missing_meta_properties_error_shows_its_lines(tmp_path: Path, nodes: int) -> None:
    data = tmp_path / "data"
    async with started(data, nodes=nodes) as broker:
        await broker.create_topic("t")
        directory = Path(broker.nodes[-1].data_dirs[0])
    (directory / "meta.properties").unlink()
    with pytest.raises((StorageError, ExceptionGroup)) as raised:
        await started(data).__aenter__()
    message = str(raised.value)
    assert f"{directory}/meta.properties is missing" in message
    lines = message.rpartition("with these lines: ")[2].split(", ")
    (directory / "meta.properties").write_text("".join(f"{line}\n" for line in lines))
    async with started(data) as broker:
        assert len(broker.nodes) == nodes
        assert "t" in broker.node.cluster.topics


@pytest.mark.parametrize("moment", ["run", "lead"])
async def test_cancelled_start_stops_all_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """SIGTERM cancels the start while tasks of the node run and the node is still STARTING."""
    cancelled = trio.CancelScope()
    owner = Server if moment == "run" else Node
    original = getattr(owner, moment)

    async def cancel_first(*arguments: object, **options: object) -> None:
        cancelled.cancel()
        await original(*arguments, **options)

    monkeypatch.setattr(owner, moment, cancel_first)
    with trio.fail_after(30), cancelled:
        async with started(tmp_path):
            await trio.sleep_forever()
    assert cancelled.cancelled_caught
    async with started(tmp_path):
        pass
