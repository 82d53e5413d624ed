"""A cluster whose nodes run in separate processes, for tests that need several CPU cores."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import NoReturn, Self

from .arguments import Config, Topics, broker_properties_with_defaults, topics_of
from .broker_thread import BrokerThread
from .child_server import start_server, stop_server
from .external import ExternalKafka
from .local import LocalBroker

# Minimum and default number of processes.
PROCESSES_MIN = 2
# Tests do not need data that survives a power cut.
DEFAULTS = {"flush.policy": "os"}


class ProcessBroker(ExternalKafka):
    """An empty cluster of nodes in separate processes, behind one bootstrap address.

    Each node uses its own CPU core, as with `kbroker serve --processes`. Use it in a `with`
    statement, or call `close`. Faults, clocks and snapshots need nodes in this process:
    `LocalBroker(nodes=2)`.

    Args:
        processes: Number of nodes, at least 2.
        topics: Topics to create: the number of partitions by name, or names of topics with one
            partition.
        config: Broker properties of Kafka and kbroker.
        data_dir: Data directory; None for a temporary one.
        thread: Thread to run in, which other brokers may share; None creates one.

    Raises:
        ValueError: The arguments are invalid.
        ConfigError: A property is unknown or has an invalid value.
        RuntimeError: The nodes do not start; standard error has the reason.
    """

    def __init__(
        self,
        processes: int = PROCESSES_MIN,
        *,
        topics: Topics | None = None,
        config: Config | None = None,
        data_dir: str | Path | None = None,
        thread: BrokerThread | None = None,
    ) -> None:
        if processes < PROCESSES_MIN:
            raise ValueError(
                f"processes must be at least {PROCESSES_MIN}, not {processes}; use LocalBroker for "
                "one node"
            )
        properties = DEFAULTS | broker_properties_with_defaults(config or {})
        wanted = topics_of(topics or {})
        self._directory = TemporaryDirectory(prefix="kbroker-") if data_dir is None else None
        directory = str(data_dir) if self._directory is None else self._directory.name
        options = ["--processes", str(processes), "--data-dir", directory, "--log-level", "warning"]
        for name, value in properties.items():
            options += ["-o", f"{name}={value}"]
        for name, partitions in wanted.items():
            options += ["--topic", f"{name}:{partitions}"]
        with ExitStack() as stack:
            stack.callback(self._delete_data)
            self._process, bootstrap = start_server(options)
            stack.callback(stop_server, self._process)
            super().__init__(bootstrap, thread)
            stack.callback(super().close)
            self.begin_test()
            self._cleanup = stack.pop_all()

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(LocalBroker, name) or name in LocalBroker.__annotations__:
            raise AttributeError(
                f"{name!r} needs nodes in this process; use LocalBroker(nodes=...) instead of "
                "ProcessBroker"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the nodes, and delete their data unless `data_dir` was given.

        In a forked child, this method does nothing, because the nodes belong to the parent.
        """
        if self._thread.is_own:
            self._cleanup.close()

    def _delete_data(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()
