"""Main program of a node process of a multi-process server.

The supervisor of the server (`supervising`) starts it; the argument is the path of a pickled
`NodeParameters`. `node_messages` defines the messages between supervisor and node.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from pathlib import Path

import trio

from kbroker.broker import Broker, DistributedNodeOptions, open_broker
from kbroker.cluster.remote_store import RemoteStore
from kbroker.cluster.running import running
from kbroker.runtime.descriptors import raise_limit
from kbroker.runtime.log_output import set_up_logging
from kbroker.storage.errors import StorageError
from kbroker.text.lines import Lines

from .as_version import version_limits
from .bootstrap_listeners import inherited_sockets
from .bootstrap_topics import create_bootstrap_topics
from .errors import StartFailed, cause_of, text_of
from .flags import load_settings
from .http import http_service
from .interpreter import freeze_long_lived_objects, set_up_interpreter
from .listeners import configured_listeners
from .node_info import info_of
from .node_messages import (
    BEGIN,
    CREATE_TOPICS,
    SERVE_HTTP,
    Joined,
    NodeError,
    NodeParameters,
    TopicsCreated,
    send_message,
)
from .options import ServeOptions

START_FAILED = 3
RECEIVE_BYTES = 4096


def main() -> None:
    """Run a node until a stop signal or the end of stdin."""
    parameters: NodeParameters = pickle.loads(Path(sys.argv[1]).read_bytes())
    options = parameters.options
    audit_file = options.audit_file and f"{options.audit_file}.node-{parameters.node_id}"
    set_up_logging(options.log_levels, options.log_format, audit_file)
    raise_limit()
    set_up_interpreter()
    gc.disable()  # until ready: startup objects are long-lived
    try:
        trio.run(_run, parameters, strict_exception_groups=True)
    except (StorageError, ExceptionGroup) as error:
        cause = cause_of(error) if isinstance(error, ExceptionGroup) else error
        send_message(NodeError(text_of(cause)))
        sys.exit(START_FAILED)


async def _run(parameters: NodeParameters) -> None:
    store = await RemoteStore.open(parameters.socket)
    async with running(store), trio.open_nursery() as nursery:
        stop = trio.CancelScope()
        await nursery.start(_stop_on_signal, stop)
        with stop:
            await _serve(parameters, store)
        nursery.cancel_scope.cancel()


async def _stop_on_signal(stop: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
    """Stop gracefully at the first signal, with controlled shutdown; exit at the second one."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            if stop.cancel_called:
                os._exit(128 + number)
            stop.cancel()


async def _serve(parameters: NodeParameters, store: RemoteStore) -> None:
    options = parameters.options
    config = load_settings(options, os.environ)
    listeners = configured_listeners(config)
    inherited = parameters.http.sockets()
    commands = _Commands(inherited.chosen)

    async def wait_for_begin() -> None:
        """Wait until all nodes have joined the cluster."""
        send_message(Joined())
        await commands.begun.wait()
        if commands.ended.is_set():
            raise StartFailed("the server stopped before its nodes started")

    http = http_service(config, listeners, inherited)
    opened = open_broker(
        config,
        data_dir=config.log_dirs,
        listeners=listeners,
        racks=[parameters.rack] if parameters.rack is not None else (),
        grace_seconds=options.grace_seconds,
        cluster_id=options.cluster_id,
        distributed=DistributedNodeOptions(
            store,
            parameters.node_id,
            parameters.nodes,
            wait_for_begin,
            inherited_sockets(parameters.bootstrap),
        ),
        intercept=version_limits(options.as_version),
        service=http,
    )
    async with trio.open_nursery() as receiving:
        receiving.start_soon(commands.receive)
        async with opened as broker, trio.open_nursery() as nursery:
            send_message(info_of(broker.nodes[0], http))
            nursery.start_soon(freeze_long_lived_objects, broker)
            nursery.start_soon(_create_topics_on_command, commands, broker, options)
            await commands.ended.wait()
            broker.stop_with_cluster()
            nursery.cancel_scope.cancel()
        receiving.cancel_scope.cancel()


async def _create_topics_on_command(
    commands: _Commands, broker: Broker, options: ServeOptions
) -> None:
    """Create the topics and seed records of the command line, and report to the supervisor."""
    await commands.topics_wanted.wait()
    try:
        await create_bootstrap_topics(broker, options.topics, options.seeds)
    except StartFailed as error:
        send_message(NodeError(str(error)))
    else:
        send_message(TopicsCreated(len(broker.node.cluster.topics)))


class _Commands:
    """Commands of the supervisor; each sets an event.

    Args:
        http_wanted: Event of `SERVE_HTTP`.

    Attributes:
        begun: `BEGIN` was received, or stdin has ended.
        topics_wanted: `CREATE_TOPICS` was received.
        ended: Stdin has ended.
    """

    def __init__(self, http_wanted: trio.Event) -> None:
        self.begun, self.topics_wanted, self.ended = trio.Event(), trio.Event(), trio.Event()
        self._events = {
            BEGIN: self.begun,
            CREATE_TOPICS: self.topics_wanted,
            SERVE_HTTP: http_wanted,
        }

    async def receive(self) -> None:
        """Receive commands until stdin ends."""
        lines = Lines()
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
            while part := await stream.receive_some(RECEIVE_BYTES):
                for command in lines.feed(part):
                    self._events[command].set()
        self.ended.set()
        self.begun.set()


if __name__ == "__main__":
    main()
