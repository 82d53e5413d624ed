"""Sockets that tests may leave to the garbage collector: only those that kafka-python forgets."""

from __future__ import annotations

import gc
import socket
import warnings
from collections.abc import Callable

import pytest
from kafka.net.inet import KafkaNetSocket


@pytest.mark.parametrize(
    ("make", "warning_count"),
    [(KafkaNetSocket().socket, 0), (socket.socket, 1)],
    ids=["client", "own"],
)
def test_only_forgotten_kafka_python_sockets_may_stay_open(
    make: Callable[[int, int], socket.socket], warning_count: int
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        descriptor = make(socket.AF_INET, socket.SOCK_STREAM).fileno()
        gc.collect()
    assert len(caught) == warning_count
    with pytest.raises(OSError, match="Bad file descriptor"):
        socket.socket(fileno=descriptor)
