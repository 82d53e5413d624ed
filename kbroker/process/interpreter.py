"""How the interpreter works in a process that is a server, and nothing else."""

from __future__ import annotations

import gc
import sys
import time

import trio

from kbroker.broker import Broker

GC_THRESHOLDS = 20_000, 1, 1000
"""Thresholds of the three generations.

A burst of pipelined requests makes thousands of objects that are freed with their responses. Python's
own threshold of 700 takes a sixth of the time of a burst, in pauses of up to 100 ms, and half of the
time of a start with many topics. The second generation is collected with the first one because ten
first ones together take 40 ms.
"""
YOUNG_SECONDS = 0.02
"""Time between two collections of young objects that each take longer than `YOUNG_COST_SECONDS`."""
YOUNG_SECONDS_MAX = 0.64
"""Maximum time between two collections of young objects, reached while there are few of them."""
YOUNG_COST_SECONDS = 0.001
"""CPU time of a collection above which the next one follows soon."""
FREEZE_SECONDS = 0.2
SWITCH_SECONDS = 0.0005
"""For how long a thread that has the interpreter keeps it from one that wants it.

That starts to count anew whenever the first one has let go of it, if only for a system call. An event
loop with much to do makes one at the end of each turn, of as many milliseconds as Python's own 5: a
thread with a sync to do waited for 300 ms until it began.
"""


def set_up_interpreter() -> None:
    """Set the garbage collector and the switching of threads up for a server."""
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)


async def freeze_long_lived_objects(broker: Broker) -> None:
    """Exclude the objects that live as long as the process from collections, and keep those short.

    Such objects exist at the start, or are loaded in the background.
    """
    gc.freeze()
    gc.enable()
    while any(node.is_loading for node in broker.running_nodes):
        await trio.sleep(FREEZE_SECONDS)
        gc.freeze()
    await collect_young_objects()


async def collect_young_objects() -> None:
    """Collect the first two generations at short intervals while many objects are created.

    Python starts a collection when the number of new objects, minus the number of freed ones,
    reaches the threshold. If a long queue of requests is worked off while new requests arrive, as
    many objects are freed as created: hundreds of thousands then stay in the first generation, and
    the next collection takes some 100 ms.
    """
    pause = YOUNG_SECONDS_MAX
    while True:
        await trio.sleep(pause)
        began = time.thread_time()
        gc.collect(1)
        is_costly = time.thread_time() - began > YOUNG_COST_SECONDS
        pause = YOUNG_SECONDS if is_costly else min(2 * pause, YOUNG_SECONDS_MAX)
