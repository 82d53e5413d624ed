"""Messages between a supervisor and its node processes.

The supervisor writes lines to a node's stdin: `begin` when all nodes have joined the cluster, and
`create-topics` to create the topics and seed records of the command line, and `serve-http` to accept
connections at the HTTP addresses of the server. The supervisor closes the stream when the whole
cluster stops. A node writes one pickled message per line to its stdout.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .options import ServeOptions
from .shared_http import HttpDescriptors

BEGIN, CREATE_TOPICS, SERVE_HTTP = b"begin", b"create-topics", b"serve-http"


class NodeParameters(NamedTuple):
    """Start parameters of a node process.

    Attributes:
        options: Command-line options of the server.
        node_id: Node ID.
        nodes: Number of nodes that share the log directories.
        rack: Rack of the node.
        socket: Path of the metadata store's Unix socket.
        bootstrap: Inherited descriptors of the bootstrap sockets, by listener name.
        http: Inherited descriptors of the HTTP sockets.
    """

    options: ServeOptions
    node_id: int
    nodes: int
    rack: str | None
    socket: str
    bootstrap: Mapping[str, Sequence[int]]
    http: HttpDescriptors


class Joined(NamedTuple):
    """The node has joined the cluster, and waits for the other nodes."""


class TopicsCreated(NamedTuple):
    """The topics of the command line exist. `topics` is the number of all topics."""

    topics: int


class NodeError(NamedTuple):
    """The node cannot start, or a command failed."""

    message: str


def send_message(message: object) -> None:
    """Send a message to the supervisor. Ignore an error if the supervisor has ended."""
    try:
        sys.stdout.write(pickle.dumps(message).hex() + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Avoid the error of Python's final flush of stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse_message(line: bytes) -> object:
    """Return the message in a line of a node's stdout."""
    return pickle.loads(bytes.fromhex(line.decode()))
