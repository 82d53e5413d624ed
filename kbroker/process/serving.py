"""A broker as a process: configuration, banner, ready signals, events, signals, exit."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from kbroker import __version__
from kbroker.broker import Apart, Broker, open_broker
from kbroker.client import check_round_trip
from kbroker.client.endpoint import Endpoint
from kbroker.cluster.topics import NewTopic
from kbroker.config import BrokerConfig, ConfigError
from kbroker.folders.found_folders import METADATA_JOURNAL
from kbroker.net.server import LOOPBACK_NAMES, CannotListen, Listener
from kbroker.protocol.errors import KafkaError
from kbroker.runtime.descriptors import raise_limit
from kbroker.runtime.log_output import set_up_logging
from kbroker.runtime.memory_errors import NEXT_ACTION, OutOfMemory, is_shortage
from kbroker.storage.naming import LOG, META_PROPERTIES

from .declared import declare
from .errors import StartFailed
from .flags import SettingFlags, kafka_environment, load_settings
from .listeners import configured_listeners

if TYPE_CHECKING:
    from kbroker.cluster import MetadataStore
    from kbroker.testing.control import ControlPort

logger = logging.getLogger(__name__)

GC_THRESHOLDS = 20_000, 1, 250
"""New objects between two collections of the youngest, and how often older ones are looked at.

A burst of pipelined requests makes thousands of objects that are gone with their answers, and a
start makes what stays: at Python's threshold of 700 looking at them takes a sixth of the time of the
first, in pauses of up to 100 ms, and half of that of a start with many topics. While a collection
goes on, everybody waits: every second one takes the middle generation as well, 60,000 objects at
most (some 5 ms), because ten together are 40 ms; all objects are as rare as 5,000,000 new ones.
"""
SPARE_SECONDS = 0.2
SIZED_MAX = 1000
"""Partitions of which the banner says the size; to look at the files of more takes too long."""
PARENT_CHECK_SECONDS = 0.5
IDLE_CHECK_SECONDS = 1
ANSWERABLE = (StartFailed, KafkaError, CannotListen, OSError, ValueError)
"""Errors that a person can do something about."""
START_SECONDS_MAX = 120
"""How long the first answer may take, on a busy machine too: logs are recovered meanwhile."""


@dataclass(slots=True)
class ServeOptions(SettingFlags):
    """What the command line of `kbroker serve` says; see its help for each."""

    memory: bool = False
    cluster: str | None = None
    nodes: int | None = None
    racks: Sequence[str] = ()
    topics: list[NewTopic] = field(default_factory=list)
    seeds: Sequence[str] = ()
    port_file: str | None = None
    ready_fd: int | None = None
    as_json: bool = False
    log_levels: tuple[str, ...] = ()
    log_format: str = "text"
    grace_seconds: float = 5
    exit_with_parent: bool = False
    idle_seconds: float | None = None
    control_port: int | None = None
    control_token_file: str | None = None
    disk: bool = False
    cluster_id: str | None = None


def run_server(options: ServeOptions) -> None:
    """Serve until a signal. Raises StartFailed or ConfigError."""
    found = kafka_environment(options, os.environ)
    options.topics += [
        NewTopic(each.name, each.partitions, each.replication_factor, configs=each.configs)
        for each in found.topics
    ]
    options.cluster_id = found.cluster_id
    levels = options.log_levels or tuple(filter(None, [found.log_level]))
    try:
        set_up_logging(levels, options.log_format)
    except ValueError as error:
        raise StartFailed(str(error)) from None
    raise_limit()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.disable()  # until it is ready: what a start makes stays
    try:
        trio.run(_Serving(options).run, strict_exception_groups=True)
    finally:
        gc.enable()


class _Serving:
    """One run of the server."""

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.started = time.perf_counter()
        # Now, because the parent may be gone before the server is ready.
        self.parent = os.getppid()
        self.stop = trio.CancelScope()
        self.is_new = False
        self.control: ControlPort | None = None
        self.connections: Callable[[], int] = int
        self.data_dirs: tuple[str, ...] = ()
        self.metadata_at: str | None = None
        """Where nodes elsewhere find it too."""

    async def run(self) -> None:
        options = self.options
        try:
            config = load_config(options)
            self._prepare_port_file()
        except (ConfigError, StartFailed) as refused:
            self.event("error", message=str(refused))
            raise
        self.data_dirs = () if options.memory else config.log_dirs
        self.is_new = not any(map(_has_data, self.data_dirs))
        self.event("starting", version=__version__, pid=os.getpid())
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._watch_signals)
                with self.stop:
                    await self._serve(config)
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:
            error = _cause_of(group)
            message = _text_of(error)
            self.event("error", message=message)
            raise StartFailed(message) from error
        self._remove_port_file()
        self.event("stopped")
        if not options.as_json:
            print("stopped", flush=True)

    def _prepare_port_file(self) -> None:
        """Take away the file of an earlier run: it may name a port that is somebody else's now."""
        path = self.options.port_file
        if not path:
            return
        probe = _temporary(path)
        try:
            probe.touch()  # and not the file itself: who waits for that may see it for a moment
            probe.unlink()
        except OSError as error:
            raise StartFailed(f"--port-file {path} cannot be written: {error.strerror}") from None
        self._remove_port_file()

    def _remove_port_file(self) -> None:
        if self.options.port_file:
            Path(self.options.port_file).unlink(missing_ok=True)

    async def _serve(self, config: BrokerConfig) -> None:
        options = self.options
        async with self._open(config) as broker, trio.open_nursery() as nursery:
            await self._announce(broker)
            nursery.start_soon(_spare_collector, broker)
            if options.exit_with_parent:
                nursery.start_soon(self._stop_with_parent)
            if options.idle_seconds is not None:
                nursery.start_soon(self._stop_when_idle, options.idle_seconds)
            await trio.sleep_forever()

    @contextlib.asynccontextmanager
    async def _open(self, config: BrokerConfig) -> AsyncIterator[Broker]:
        options = self.options
        listeners = configured_listeners(config)
        for listener in listeners:
            self._check_exposure(listener)
        settings: dict[str, Any] = {
            "data_dir": self.data_dirs or None,
            "listeners": listeners,
            "nodes": options.nodes,
            "racks": options.racks,
            "grace_seconds": options.grace_seconds,
            "cluster_id": options.cluster_id,
        }
        async with contextlib.AsyncExitStack() as stack:
            if options.cluster is not None:
                store = await stack.enter_async_context(self._metadata(options.cluster))
                settings["apart"] = Apart(store, config.node_id)
            yield await stack.enter_async_context(
                self._plain(config, settings)
                if options.control_port is None
                else self._controlled(options.control_port, config, settings)
            )

    def _metadata(self, cluster: str) -> contextlib.AbstractAsyncContextManager[MetadataStore]:
        """That of a cluster that has nodes elsewhere too. Raises StartFailed, ConfigError."""
        try:
            from kbroker.cluster.etcd import EtcdAddress, connected
        except ModuleNotFoundError as error:
            missing = f"--cluster needs {error.name}: pip install 'kbroker[cluster]'"
            raise StartFailed(missing) from None
        address = EtcdAddress.parse(cluster)
        self.metadata_at = str(address)
        return connected(address)

    @contextlib.asynccontextmanager
    async def _plain(self, config: BrokerConfig, settings: dict[str, Any]) -> AsyncIterator[Broker]:
        async with open_broker(config, **settings) as broker:
            self.connections = broker.connections
            await self._prepare(broker)
            yield broker

    @contextlib.asynccontextmanager
    async def _controlled(
        self, port: int, config: BrokerConfig, settings: dict[str, Any]
    ) -> AsyncIterator[Broker]:
        """A broker that takes orders of tests."""
        from kbroker.testing.control import controlled

        try:
            async with controlled(
                port,
                self.options.control_token_file,
                self._prepare,
                config=config,
                disk=self.options.disk,
                **settings,
            ) as (local, self.control):
                self.connections = local.connections
                yield local.running.broker
        except* OSError as group:
            raise StartFailed(
                f"--control-port {port} cannot be used ({group.exceptions[0]}); name another one, "
                "0 is a free one"
            ) from group

    async def _prepare(self, broker: Broker) -> None:
        """What there has to be before anybody is told of the broker."""
        options = self.options
        if options.cluster_id not in (None, broker.node.cluster.id):
            logger.warning(
                "CLUSTER_ID=%s is left out: the data folder belongs to cluster %s",
                options.cluster_id,
                broker.node.cluster.id,
            )
        await declare(broker, options.topics, options.seeds)

    def _check_exposure(self, listener: Listener) -> None:
        """A plaintext listener that other machines reach is worth a loud word."""
        if listener.host in LOOPBACK_NAMES:
            return
        message = (
            f"anyone who can reach {listener.host} can read and write everything: this listener "
            "has neither TLS nor a login; listen on localhost unless the network is trusted"
        )
        if self.options.strict:
            raise StartFailed(message + " (refused by --strict)")
        logger.warning("%s", message)
        self.event("warning", message=message)

    # -- ready

    async def _announce(self, broker: Broker) -> None:
        for node in broker.nodes:
            await check_round_trip(*node.endpoint, START_SECONDS_MAX)
        ready = self._ready_event(broker)
        if self.options.as_json:
            self.event("ready", **ready)
        else:
            self._print_banner(broker)
        self._signal_ready(ready)

    def _ready_event(self, broker: Broker) -> dict[str, Any]:
        nodes = [
            {
                "node_id": node.id,
                "listeners": {
                    listener.name: str(endpoint) for listener, endpoint in node.server.endpoints()
                },
                "data_dirs": node.data_dirs,
            }
            for node in broker.nodes
        ]
        return {
            "bootstrap_servers": broker.bootstrap_servers,
            "listeners": nodes[0]["listeners"],
            "pid": os.getpid(),
            "cluster_id": broker.node.cluster.id,
            "node_id": broker.node.id,
            "nodes": nodes,
            "data_dir": os.path.abspath(self.data_dirs[0]) if self.data_dirs else None,
            "control": self.control and self.control.address,
            "control_token_file": self.control and self.control.token_file,
            "version": __version__,
            "seconds": round(time.perf_counter() - self.started, 3),
        }

    def _print_banner(self, broker: Broker) -> None:
        node = broker.node
        several = len(broker.nodes) > 1
        ids = ", ".join(str(each.id) for each in broker.nodes)
        head = f"nodes {ids}" if several else f"node {ids}"
        lines = [f"kbroker {__version__} · {head} · cluster {node.cluster.id}"]
        for each in broker.nodes:
            for listener, endpoint in each.server.endpoints():
                host = "localhost" if listener.host in LOOPBACK_NAMES else endpoint.host
                whose = f"node {each.id}, " if several else ""
                note = f"; advertised: {listener.advertised}" if listener.advertised else ""
                address = Endpoint(host, endpoint.port)
                lines.append(f"  Kafka    {address}  ({whose}{listener.name}{note})")
        if self.metadata_at is not None:
            ids = ", ".join(map(str, sorted(node.cluster.nodes)))
            lines.append(f"  Cluster  {self.metadata_at}  nodes that run: {ids}")
        lines.append(f"  Data     {self._data_line(broker)}")
        if self.control:
            where, file = self.control
            lines.append(f"  Control  {where}  (faults, clocks and nodes; token in {file})")
        loss = _loss_window(node.config, in_memory=node.partitions.in_memory)
        if loss:
            lines.append(f"  Loss     {loss}")
        took = time.perf_counter() - self.started
        lines.append(f"ready in {took:.1f} s — Ctrl+C to stop")
        print("\n".join(lines), flush=True)

    def _data_line(self, broker: Broker) -> str:
        topics = len(broker.node.cluster.topics)
        count = f"{topics} topic{'' if topics == 1 else 's'}"
        if not self.data_dirs:
            return f"in memory, {count}"
        crashed = [each.id for each in broker.nodes if each.node.partitions.logs.crashed]
        state = "clean shutdown"
        if self.is_new:
            state = "new"
        elif crashed:
            state = "recovered after a crash"
            if len(crashed) < len(broker.nodes):
                state += f" of node {', '.join(map(str, crashed))}"
        if sum(len(each.node.partitions.logs.folders()) for each in broker.nodes) <= SIZED_MAX:
            paths = [path for each in broker.nodes for path in each.data_dirs]
            count += f", {sum(map(_segment_bytes, paths)) / 1e6:.1f} MB"
        return f"{', '.join(self.data_dirs)}  {count}, {state}"

    def _signal_ready(self, ready: dict[str, Any]) -> None:
        options = self.options
        line = json.dumps({"event": "ready", **ready}) + "\n"
        if options.port_file:
            is_json = options.port_file.endswith(".json")
            _write_atomic(options.port_file, line if is_json else ready["bootstrap_servers"] + "\n")
        if options.ready_fd is not None:
            with os.fdopen(options.ready_fd, "w") as stream:
                stream.write(line)
        _notify_systemd("READY=1")

    def event(self, name: str, **values: Any) -> None:
        """Print an event, with `--json` only."""
        if self.options.as_json:
            print(json.dumps({"event": name, **values}), flush=True)

    # -- stop

    async def _watch_signals(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """The first signal begins a graceful stop, the second ends the process at once."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                if self.stop.cancel_called:
                    os._exit(128 + number)
                self._begin_stop(signal.Signals(number).name)

    def _begin_stop(self, cause: str) -> None:
        logger.info("stopping: %s", cause)
        self.event("stopping", cause=cause)
        _notify_systemd("STOPPING=1")
        self.stop.cancel()

    async def _stop_with_parent(self) -> None:
        while os.getppid() == self.parent:  # noqa: ASYNC110 - nothing tells us when that changes
            await trio.sleep(PARENT_CHECK_SECONDS)
        self._begin_stop("the parent process is gone")

    async def _stop_when_idle(self, seconds: float) -> None:
        used_at = trio.current_time()
        while trio.current_time() - used_at < seconds:
            await trio.sleep(min(IDLE_CHECK_SECONDS, seconds))
            if self.connections():
                used_at = trio.current_time()
        self._begin_stop(f"no client for {seconds:g} s")


async def _spare_collector(broker: Broker) -> None:
    """Spare the garbage collector what lives as long as the process: what there is at the start,
    and what is loaded behind."""
    gc.freeze()
    gc.enable()
    while any(node.is_loading for node in broker.running_nodes):
        await trio.sleep(SPARE_SECONDS)
        gc.freeze()


def _cause_of(group: ExceptionGroup[Exception]) -> Exception:
    """The one error inside that a person can do something about; else the group is raised."""
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            return _cause_of(error)
        if isinstance(error, ANSWERABLE) or is_shortage(error):
            return error
    raise group


def _text_of(error: Exception) -> str:
    if isinstance(error, KafkaError) and error.message:
        return error.message
    if is_shortage(error) and not isinstance(error, OutOfMemory):
        return f"memory ran out ({error!r}): {NEXT_ACTION}"
    return str(error)


def load_config(options: ServeOptions) -> BrokerConfig:
    """Merge command line, environment and file, and say what is noteworthy about the result."""
    config = load_settings(options, os.environ)
    for notice in config.notices:
        logger.log(logging.getLevelNamesMapping()[notice.level.upper()], "%s", notice.text)
    return config


def _loss_window(config: BrokerConfig, *, in_memory: bool) -> str | None:
    """Say what may be lost, for every set-up but the durable one."""
    if in_memory:
        return "everything is gone when this process ends"
    policy = config.flush_policy
    if policy == "interval":
        return f"power loss: up to {config.flush_interval_ms} ms (flush.policy=interval)"
    if policy == "os":
        return "power loss: whatever the kernel has not written back (flush.policy=os)"
    return None


def _has_data(folder: str) -> bool:
    """Whether somebody ran on this folder before."""
    return any(Path(folder, name).exists() for name in (META_PROPERTIES, METADATA_JOURNAL))


def _segment_bytes(folder: str) -> int:
    with os.scandir(folder) as entries:
        partitions = [entry.path for entry in entries if entry.is_dir()]
    total = 0
    for path in partitions:
        with os.scandir(path) as files:
            total += sum(file.stat().st_size for file in files if file.name.endswith(LOG))
    return total


def _write_atomic(path: str, text: str) -> None:
    temporary = _temporary(path)
    temporary.write_text(text)
    os.replace(temporary, path)


def _temporary(path: str) -> Path:
    return Path(f"{path}.{os.getpid()}.tmp")


def _notify_systemd(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(state.encode(), address)
