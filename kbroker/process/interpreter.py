"""Settings of the Python interpreter for a dedicated server process."""

from __future__ import annotations

import gc
import sys
import time

import trio

from kbroker.broker import Broker

# Collection thresholds of the three generations. A burst of pipelined requests creates thousands of
# objects that are freed with their responses. Python's default threshold of 700 takes 1/6 of the time
# of a burst, in pauses of up to 100 ms, and 1/2 of the time of a start with many topics. The second
# generation is collected with the first one because ten first generations together take 40 ms.
GC_THRESHOLDS = 20_000, 1, 1000
# Seconds between two collections of young objects that each take longer than YOUNG_COST_SECONDS.
YOUNG_SECONDS = 0.02
# Maximum seconds between two collections of young objects, while few objects are created.
YOUNG_SECONDS_MAX = 0.64
# CPU seconds of a collection above which the next one follows soon.
YOUNG_COST_SECONDS = 0.001
FREEZE_SECONDS = 0.2
# Seconds after which a thread must release the interpreter lock to a waiting thread. The time restarts
# whenever the thread releases the lock, even for a system call. A busy event loop makes a system call
# after each iteration, which takes about as long as Python's default of 5 ms. With that default, a
# thread with an fsync to do waited for 300 ms.
SWITCH_SECONDS = 0.0005


def set_up_interpreter() -> None:
    """Configure the garbage collector and thread switching for a server."""
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)


async def freeze_long_lived_objects(broker: Broker) -> None:
    """Exclude long-lived objects from garbage collections, and keep collections short.

    Long-lived objects are created at startup, or loaded in the background.
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
