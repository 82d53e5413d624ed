"""How often a server looks for garbage."""

from __future__ import annotations

import gc

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


async def spare_collector(broker: Broker) -> None:
    """Spare the garbage collector what lives as long as the process: what there is at the start,
    and what is loaded behind."""
    gc.freeze()
    gc.enable()
    while any(node.is_loading for node in broker.running_nodes):
        await trio.sleep(SPARE_SECONDS)
        gc.freeze()
