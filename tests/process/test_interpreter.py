"""Tests of the interpreter settings of a server."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CHURN = """
import gc, json, sys, trio
from collections import deque
from trio.testing import MockClock
from kbroker.process.interpreter import collect_young_objects, set_up_interpreter

def young_objects():
    return sum(len(gc.get_objects(generation=each)) for each in (0, 1))

async def main(is_collected, clock):
    most, queue = 0, deque()
    async with trio.open_nursery() as nursery:
        if is_collected:
            nursery.start_soon(collect_young_objects)
        for number in range(200_000):
            queue.append([number])
        for number in range(200):
            for each in range(1000):
                queue.append([each])
                queue.popleft()
            clock.jump(0.01)
            await trio.sleep(0)
            if number > 150:
                most = max(most, young_objects())
        nursery.cancel_scope.cancel()
    return most

set_up_interpreter()
gc.freeze()
clock = MockClock()
print(json.dumps(trio.run(main, json.loads(sys.argv[1]), clock, clock=clock)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_collected", [True, False])
def test_periodic_collection_moves_long_queue_to_old_generation(is_collected: bool) -> None:
    command = [sys.executable, "-c", CHURN, json.dumps(is_collected)]
    most = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # Without periodic collections, Python collects none of the objects.
    assert (most < 150_000) == is_collected, most
