"""What a supervisor and the processes of its nodes say to each other.

The supervisor says words on a node's stdin: `begin` when all nodes have joined, `declare` to make the
topics of a start, and the end of the stream when the whole cluster stops. What a node has to tell goes to
its stdout, a line each.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import NamedTuple

from .options import ServeOptions

BEGIN, DECLARE = b"begin", b"declare"


class NodeOrder(NamedTuple):
    """What a node process is to do: `node_id` of `nodes` that share the data directory.

    `socket` is where the metadata is.
    """

    options: ServeOptions
    node_id: int
    nodes: int
    rack: str | None
    socket: str


class Joined(NamedTuple):
    """The node is a part of the cluster, and waits for the others."""


class Declared(NamedTuple):
    """The topics of the start are there."""

    topics: int
    """How many there are of all."""


class Refused(NamedTuple):
    """The node cannot start, or not do what it was told."""

    message: str


def tell(news: object) -> None:
    """Tell the supervisor something; one that is gone hears nothing."""
    try:
        sys.stdout.write(pickle.dumps(news).hex() + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Nor is it told what is left when Python ends, which would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def news_of(line: bytes) -> object:
    """What a line of a node's stdout tells."""
    return pickle.loads(bytes.fromhex(line.decode()))
