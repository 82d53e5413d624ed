"""A broker process that reports how long its event loop was busy without interruption.

It prints a line of JSON when it serves, and one for each byte of its input, about the time
since the previous line. It exits at the end of the input.
"""

from __future__ import annotations

import gc
import json
import sys

import trio

from kbroker.broker import open_broker
from kbroker.config import BrokerConfig
from kbroker.process.http import http_service
from kbroker.process.interpreter import collect_young_objects, set_up_interpreter
from kbroker.process.listeners import configured_listeners

from ..loop_latency import ThreadTime
from .planted import plant


class IterationTimes(trio.abc.Instrument):
    """The CPU time of event-loop iterations and task steps.

    An arriving request waits up to one iteration until it is read. `longest` is the longest
    iteration, `step` the longest step of a single task, and `task` the name of that task.
    """

    def __init__(self) -> None:
        self._iteration, self._step = ThreadTime(), ThreadTime()
        self.clear()

    def clear(self) -> None:
        self.longest = self.step = 0.0
        self.task = ""

    def after_io_wait(self, timeout: float) -> None:
        self._iteration.begin()

    def before_io_wait(self, timeout: float) -> None:
        self.longest = self._iteration.longer_than(self.longest) or self.longest

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step.begin()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if took := self._step.longer_than(self.step):
            self.step, self.task = took, task.name

    def report(self) -> dict[str, object]:
        seen: dict[str, object] = {"pass": self.longest, "step": self.step, "task": self.task}
        self.clear()
        return seen


def print_json(values: dict[str, object]) -> None:
    print(json.dumps(values), flush=True)


async def serve(times: IterationTimes, data_dir: str, options: dict[str, str]) -> None:
    config = BrokerConfig.load(options=options)
    listeners = configured_listeners(config)
    served = http_service(config, listeners)
    assert served is not None
    async with open_broker(
        config, data_dir=data_dir, listeners=listeners, service=served
    ) as broker:
        node = broker.local_node(1)
        await plant(broker, node.listeners[0].port)
        gc.collect()  # as `kbroker serve` does
        gc.freeze()
        set_up_interpreter()
        http, registry = served.http_at(1), served.registry_at(1)
        assert http is not None
        assert registry is not None
        ports = [*(each.port for each in node.listeners), http.port]
        print_json({"ports": ports, "registry": registry.port})
        orders = trio.lowlevel.FdStream(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect_young_objects)
            while await orders.receive_some(1):
                print_json(times.report())
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    times = IterationTimes()
    trio.run(serve, times, sys.argv[1], json.loads(sys.argv[2]), instruments=[times])
