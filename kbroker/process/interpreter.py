"""How the interpreter works in a process that is a server, and nothing else."""

from __future__ import annotations

import gc
import sys

import trio

from kbroker.broker import Broker

GC_THRESHOLDS = 20_000, 1, 250
"""New objects between two collections of the youngest, and how often older ones are looked at.

A burst of pipelined requests makes thousands of objects that are gone with their answers, and a
start makes what stays: at Python's threshold of 700 looking at them takes a sixth of the time of the
first, in pauses of up to 100 ms, and half of that of a start with many topics. While a collection
goes on, everybody waits: every second one takes the middle generation as well, 60,000 objects at
most (some 5 ms), because ten together are 40 ms; all objects are as rare as 5,000,000 new ones.
"""
SPARE_SECONDS = 0.2
SWITCH_SECONDS = 0.0005
"""For how long a thread that has the interpreter keeps it from one that wants it.

That starts to count anew whenever the first one has let go of it, if only for a system call. An event
loop with much to do makes one at the end of each turn, of as many milliseconds as Python's own 5: a
thread with a sync to do waited for 300 ms until it began.
"""


def set_up_interpreter() -> None:
    """Have garbage collected, and threads take turns, as it is good for a server."""
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)


async def spare_collector(broker: Broker) -> None:
    """Spare the garbage collector what lives as long as the process: what there is at the start,
    and what is loaded behind."""
    gc.freeze()
    gc.enable()
    while any(node.is_loading for node in broker.running_nodes):
        await trio.sleep(SPARE_SECONDS)
        gc.freeze()
