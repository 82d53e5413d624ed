"""Tests of `kbroker serve` as a process: recovery, sources of settings, signals, limits."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from kbroker.broker import Broker
from kbroker.data_dirs.resize import grow
from kbroker.process import serving as process_serving
from kbroker.process.errors import StartFailed
from kbroker.process.interpreter import GC_THRESHOLDS, SWITCH_SECONDS
from kbroker.process.node_info import SIZED_PARTITIONS_MAX
from kbroker.process.options import ServeOptions
from kbroker.process.serving import _Serving
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.configs import DescribeConfigsRequest
from kbroker.runtime.time_slices import TIME_SLICE_SECONDS
from kbroker.storage.files import OsFiles

from ..cli.test_serve import SECONDS, serving, wait_for
from ..wire import (
    ANSWER_SECONDS,
    ConnectionClosed,
    batch,
    connected,
    create_topic,
    fetch_request,
    metadata,
    produce,
    until,
    values_of,
)


class Server:
    """A server process that is ready."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        host, _, port = address.strip().rpartition(":")
        self.endpoint = (host.strip("[]"), int(port))

    def stop(self, how: int = signal.SIGTERM) -> tuple[str, str]:
        """Stop the server, and return its output and error output."""
        self.process.send_signal(how)
        return self.process.communicate(timeout=SECONDS)


def await_server(process: subprocess.Popen[str], port_file: Path) -> Server:
    return Server(process, wait_for(port_file))


def flags(directory: Path, *more: str) -> list[str]:
    port_file = directory / "port"
    port_file.unlink(missing_ok=True)
    return [
        "--port",
        "0",
        "--port-file",
        str(port_file),
        "--data-dir",
        str(directory / "data"),
        *more,
    ]


def banner_of(directory: Path, *more: str, how: int = signal.SIGTERM, **settings: Any) -> str:
    """Start and stop a server, and return its banner."""
    with serving(*flags(directory, *more), **settings) as process:
        output, _ = await_server(process, directory / "port").stop(how)
    return output


@pytest.mark.slow
def test_banner_reports_clean_or_recovered_directory(tmp_path: Path) -> None:
    topic = ("--topic", "t:2")
    assert "0 topics" in banner_of(tmp_path)
    assert "clean shutdown" in banner_of(tmp_path, *topic)
    banner = banner_of(tmp_path, how=signal.SIGKILL)
    assert "1 topic," in banner
    assert "recovered after a crash" in banner_of(tmp_path)
    assert "clean shutdown" in banner_of(tmp_path)


@pytest.mark.slow
def test_banner_omits_size_for_many_partitions(tmp_path: Path) -> None:
    assert "1 topic, 0.0 MB, new" in banner_of(tmp_path, "--topic", f"t:{SIZED_PARTITIONS_MAX + 1}")
    (tmp_path / "data" / "t-0").mkdir()
    assert "1 topic, 0.0 MB, clean shutdown" in banner_of(tmp_path)
    for index in range(SIZED_PARTITIONS_MAX + 1):
        (tmp_path / "data" / f"t-{index}").mkdir(exist_ok=True)
    assert "1 topic, clean shutdown" in banner_of(tmp_path)


@pytest.mark.slow
def test_added_directories_count_as_clean(tmp_path: Path) -> None:
    banner_of(tmp_path, "--topic", "t:2")
    directories = f"log.dirs={tmp_path / 'data'},{tmp_path / 'more'}"
    more = ["--port", "0", "--port-file", str(tmp_path / "port"), "-o", directories]
    with serving(*more) as process:
        assert "clean shutdown" in await_server(process, tmp_path / "port").stop()[0]
    grow(OsFiles(), [str(tmp_path / name) for name in ("data", "more")], 3)
    with serving(*more) as process:
        assert "clean shutdown" in await_server(process, tmp_path / "port").stop()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--memory"], "all data is lost when this process ends"),
        (["-o", "flush.policy=interval", "-o", "flush.interval.ms=250"], "up to 250 ms"),
        (["-o", "flush.policy=os"], "whatever the kernel has not written back"),
        (["-o", "flush.policy=fsync"], None),
    ],
    ids=str,
)
def test_banner_describes_possible_data_loss(
    tmp_path: Path, more: list[str], expected: str | None
) -> None:
    given = flags(tmp_path, *more)
    if "--memory" in more:
        given = given[:4] + more
    with serving(*given) as process:
        output, _ = await_server(process, tmp_path / "port").stop()
    assert (expected is None and "Loss" not in output) or (
        expected is not None and expected in output
    )


@pytest.mark.slow
async def test_options_override_environment_and_file(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("num.partitions=3\nlog.segment.bytes=2000000\nmessage.max.bytes=3000\n")
    environment = {
        **os.environ,
        "KBROKER_CFG_NUM_PARTITIONS": "4",
        "KBROKER_CFG_LOG_SEGMENT_BYTES": "3000000",
        "KBROKER_TOPIC": "from-the-environment",
    }
    more = ("--config", str(config), "-o", "num.partitions=5")
    with serving(*flags(tmp_path, *more), env=environment) as process:
        server = await_server(process, tmp_path / "port")
        async with connected(server.endpoint) as wire:
            (row,) = (await metadata(wire)).topics
            assert (row.name, len(row.partitions)) == ("from-the-environment", 5)
            ask_for = DescribeConfigsRequest
            resource_row = ask_for.Resource(resource_type=4, resource_name="1")
            response = await wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, ask_for(resources=[resource_row]))
            found = {entry.name: entry.value for entry in response.results[0].configs}
            assert found["num.partitions"] == "5"
            assert found["log.segment.bytes"] == "3000000"
            assert found["message.max.bytes"] == "3000"
        server.stop()


@pytest.mark.slow
async def test_declared_topics_exist_when_server_is_ready(tmp_path: Path) -> None:
    more = ("--topic", "plain:3", "--topic", "keys:1:cleanup.policy=compact,retention.ms=5")
    with serving(*flags(tmp_path, *more)) as process:
        server = await_server(process, tmp_path / "port")
        async with connected(server.endpoint) as wire:
            rows = {row.name: len(row.partitions) for row in (await metadata(wire)).topics}
            assert rows == {"plain": 3, "keys": 1}
        server.stop()


@pytest.mark.slow
async def test_first_signal_stops_server_gracefully(tmp_path: Path) -> None:
    """Pending fetches are answered, and the next start reports a clean shutdown."""
    with serving(*flags(tmp_path)) as process:
        server = await_server(process, tmp_path / "port")
        async with connected(server.endpoint) as wire:
            topic = await create_topic(wire, "t")
            await produce(wire, topic, batch([b"a"]))
            await wire.send(ApiKey.FETCH, 12, fetch_request(topic, 1, max_wait_ms=60_000))
            assert await wire.is_silent()
            process.send_signal(signal.SIGINT)
            assert (await wire.receive()).responses[0].partitions[0].error_code == 0
            await wire.wait_closed()
        output, _ = process.communicate(timeout=SECONDS)
        assert output.endswith("stopped\n")
        assert process.returncode == 0
    with serving(*flags(tmp_path)) as process:
        server = await_server(process, tmp_path / "port")
        async with connected(server.endpoint) as wire:
            response = await wire.ask(ApiKey.FETCH, 12, fetch_request(topic))
            assert values_of(response.responses[0].partitions[0]) == [b"a"]
        output, _ = server.stop()
    assert "clean shutdown" in output


@pytest.mark.slow
async def test_second_signal_stops_server_immediately(tmp_path: Path) -> None:
    """A client that reads no responses delays the graceful stop."""
    with serving(*flags(tmp_path, "--grace", "30s")) as process:
        server = await_server(process, tmp_path / "port")
        async with connected(server.endpoint) as wire:
            topic = await create_topic(wire, "t")
            for _ in range(20):
                await produce(wire, topic, batch([bytes(900_000)]))
            frame = wire.frame(ApiKey.FETCH, 12, fetch_request(topic, partition_max_bytes=1 << 25))
            await wire.send_bytes(frame * 20)
            process.send_signal(signal.SIGTERM)
            time.sleep(1)  # noqa: ASYNC251  # no other task runs here
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            await until(lambda: process.poll() is not None)
        assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.slow
async def test_graceful_stop_ends_after_grace_period(tmp_path: Path) -> None:
    with serving(*flags(tmp_path, "--grace", "500ms")) as process:
        server = await_server(process, tmp_path / "port")
        async with connected(server.endpoint) as wire:
            topic = await create_topic(wire, "t")
            for _ in range(20):
                await produce(wire, topic, batch([bytes(900_000)]))
            frame = wire.frame(ApiKey.FETCH, 12, fetch_request(topic, partition_max_bytes=1 << 25))
            await wire.send_bytes(frame * 20)
            process.send_signal(signal.SIGTERM)
            await until(lambda: process.poll() is not None)
        assert process.returncode == 0


@pytest.mark.slow
def test_systemd_is_notified_of_start_and_stop(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(address))
        receiver.settimeout(SECONDS)
        environment = {**os.environ, "NOTIFY_SOCKET": str(address)}
        with serving(*flags(tmp_path), env=environment) as process:
            assert receiver.recv(100) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert receiver.recv(100) == b"STOPPING=1"


@pytest.mark.slow
def test_json_flag_prints_only_events(tmp_path: Path) -> None:
    """Warnings are printed as events, and the creation of a topic is only logged."""
    more = ("--json", "--topic", "t", "-o", "no.such.setting=1", "--host", "0.0.0.0")
    with serving(*flags(tmp_path, *more)) as process:
        output, errors = await_server(process, tmp_path / "port").stop()
    names = [json.loads(line)["event"] for line in output.splitlines()]
    assert names == ["starting", "warning", "ready", "stopping", "stopped"]
    assert "no.such.setting" in errors


@pytest.mark.slow
def test_json_log_has_one_object_per_line(tmp_path: Path) -> None:
    more = ("--log-format", "json", "--topic", "t")
    with serving(*flags(tmp_path, *more)) as process:
        _, errors = await_server(process, tmp_path / "port").stop()
    lines = [json.loads(line) for line in errors.splitlines()]
    assert any("topic t created" in line["message"] for line in lines)


async def can_connect(endpoint: tuple[str, int]) -> bool:
    try:
        async with connected(endpoint) as wire:
            return await wire.works()
    except (ConnectionClosed, OSError):
        return False


@pytest.mark.slow
async def test_server_works_with_few_file_descriptors(tmp_path: Path) -> None:
    """Connections leave some descriptors for the logs of many partitions and of new topics."""

    def limit_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with serving(*flags(tmp_path), preexec_fn=limit_descriptors) as process:
        server = await_server(process, tmp_path / "port")
        async with connected(server.endpoint) as wire:
            idle = [socket.create_connection(server.endpoint) for _ in range(100)]
            topic = await create_topic(wire, "t", 50)
            for offset in range(2):
                for partition in range(50):
                    row = await produce(wire, topic, batch([b"x"]), partition=partition)
                    assert (row.error_code, row.base_offset) == (0, offset)
            response = await wire.ask(ApiKey.FETCH, 12, fetch_request(topic, partitions=range(50)))
            rows = response.responses[0].partitions
            assert [values_of(row) for row in rows] == [[b"x", b"x"]] * 50
            for each in idle:
                each.close()
        # The server may reject a new client until it has noticed the disconnects.
        with trio.fail_after(ANSWER_SECONDS):
            while not await can_connect(server.endpoint):  # noqa: ASYNC110  # another process
                await trio.sleep(0.05)
        _, errors = server.stop()
    assert process.returncode == 0
    assert errors.count("raise the limit of open files") == 1
    assert "Traceback" not in errors


def test_each_command_has_help() -> None:
    for command in ((), ("serve",), ("health",), ("log",), ("demo",)):
        done = subprocess.run(
            [sys.executable, "-m", "kbroker", *command, "--help"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0
        assert "Usage:" in done.stdout


def test_young_garbage_collections_scan_few_objects() -> None:
    """A collection blocks all threads, and a long request creates very many objects."""
    seen = []

    def count_objects(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] < 2:
            generations = range(about["generation"] + 1)
            seen.append(sum(len(gc.get_objects(generation=each)) for each in generations))

    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.callbacks.append(count_objects)
    try:
        created = [[index] for index in range(600_000)]
    finally:
        gc.callbacks.remove(count_objects)
        gc.set_threshold(*before)
    assert len(created) == 600_000
    assert len(seen) > 10
    assert max(seen) < 4 * GC_THRESHOLDS[0] <= 100_000


@pytest.mark.slow
def test_thread_switch_interval_is_shorter_than_time_slice() -> None:
    """With a longer interval, threads wait at each time slice, up to 300 ms for an fsync."""
    script = (
        "import sys; from kbroker.process.interpreter import set_up_interpreter;"
        "set_up_interpreter(); print(sys.getswitchinterval())"
    )
    interval = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert float(interval) == pytest.approx(SWITCH_SECONDS)
    assert 4 * SWITCH_SECONDS < TIME_SLICE_SECONDS


async def test_delay_of_event_loop_does_not_stop_idle_server(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Clients that connect during the delay are accepted after it."""
    run = _Serving(ServeOptions())
    connections = 0
    run.connections = lambda: connections
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run._stop_when_idle, 60)
        await trio.sleep(10.5)
        autojump_clock.jump(100)
        await trio.testing.wait_all_tasks_blocked()
        connections = 1
        await trio.sleep(100)
        assert not run.stop.cancel_called
        connections = 0
        await trio.sleep(58)
        assert not run.stop.cancel_called
        await trio.sleep(3)
        assert run.stop.cancel_called


@pytest.mark.trio
@pytest.mark.usefixtures("no_settings_of_this_machine")
async def test_port_file_is_removed_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port is free then, so another process may use it."""
    port_file = tmp_path / "port"
    existed = []

    async def fail(_: Broker) -> None:
        existed.append(port_file.exists())
        raise ValueError("the server fails when it is ready")

    monkeypatch.setattr(process_serving, "freeze_long_lived_objects", fail)
    server = _Serving(ServeOptions(port=0, memory=True, port_file=str(port_file)))
    with pytest.raises(StartFailed, match="the server fails"):
        await server.run()
    assert existed == [True]
    assert not port_file.exists()
