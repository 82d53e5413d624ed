"""A broker in a process of its own that says how long its event loop was busy at a stretch.

Prints a line of JSON when it serves, and one for each byte that it reads, about the time since the one
before; ends at the end of its input.
"""

from __future__ import annotations

import gc
import json
import sys
import time

import trio

from kbroker.broker import open_broker
from kbroker.config import BrokerConfig
from kbroker.process.collecting import GC_THRESHOLDS

from ..brokers import LOOPBACK


class Passes(trio.abc.Instrument):
    """How long the event loop goes over its tasks before it looks for news, in processor time.

    Who sends something waits for one such pass until it is read. `longest` is the longest one,
    `step` the longest of a single task and `task` whose that was.
    """

    def __init__(self) -> None:
        self._pass_began = self._step_began = time.thread_time()
        self.clear()

    def clear(self) -> None:
        self.longest = self.step = 0.0
        self.task = ""

    def after_io_wait(self, timeout: float) -> None:
        self._pass_began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        self.longest = max(self.longest, time.thread_time() - self._pass_began)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step_began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.thread_time() - self._step_began
        if took > self.step:
            self.step, self.task = took, task.name

    def report(self) -> dict[str, object]:
        seen: dict[str, object] = {"pass": self.longest, "step": self.step, "task": self.task}
        self.clear()
        return seen


def say(values: dict[str, object]) -> None:
    print(json.dumps(values), flush=True)


async def serve(passes: Passes, data_dir: str, options: dict[str, str]) -> None:
    async with open_broker(
        BrokerConfig.load(options=options), data_dir=data_dir, listeners=[LOOPBACK]
    ) as broker:
        gc.collect()  # as `kbroker serve` does
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        say({"port": broker.endpoint.port})
        orders = trio.lowlevel.FdStream(0)
        while await orders.receive_some(1):
            say(passes.report())


if __name__ == "__main__":
    passes = Passes()
    trio.run(serve, passes, sys.argv[1], json.loads(sys.argv[2]), instruments=[passes])
