"""A simulation of clients against the model, in random single steps, with faults."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from .history import (
    BROKER,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Event,
    Operation,
    Phase,
    Place,
)
from .model import Model, RequestRejected, Steps

T = TypeVar("T")

GROUP = "bank"
INPUTS: list[Place] = [("in", 0), ("in", 1)]
SIDES: list[Place] = [("side", 0), ("more", 0)]
OUTPUTS: list[Place] = [("out", 0), ("out", 1)]
PLACES = [*INPUTS, *SIDES, *OUTPUTS]
PRODUCERS, TRANSFORMERS = 3, 2
ABORTED = 0.3
DRAIN_STEPS_MAX = 4_000


@dataclass(eq=False)
class Client:
    """One process of a client. While `paused`, it takes no steps."""

    name: str
    life: int
    steps: Steps
    paused: bool = False

    @property
    def process(self) -> str:
        return f"{self.name}.{self.life}"


class Simulation:
    """A run against a model; `run` returns its history.

    After the run, `is_drained` is True if all clients stopped by themselves.

    Args:
        model: Class of the broker model.
        seed: Random seed; equal seeds give equal histories.
        steps: Number of steps before the clients are asked to stop.
    """

    def __init__(self, model: type[Model], seed: int, steps: int = 2000) -> None:
        self.events: list[Event] = []
        self.is_drained = False
        self._broker = model(INPUTS)
        self._random = random.Random(seed)
        self._steps = steps
        self._values = itertools.count(1)
        self._names = itertools.count(1)
        self._broker_life = 0
        self._stopping = False
        self._clients: list[Client] = []
        self._lives: dict[str, int] = {}

    def run(self) -> list[Event]:
        """Run from the first client to the final reads and return the events."""
        names = [f"transformer-{number}" for number in range(TRANSFORMERS)]
        self._broker.join(names)
        for name in [*names, *(f"producer-{number}" for number in range(PRODUCERS))]:
            self._start(name)
        self._clients.append(Client("reader", 1, self._observe()))
        for _ in range(self._steps):
            self._step()
            if self._random.random() < 0.02:
                self._inject_fault()
        self._stopping = True
        for client in self._clients:
            client.paused = False
        for _ in range(DRAIN_STEPS_MAX):
            if self._clients:
                self._step()
        self.is_drained = not self._clients
        self._broker.restart()
        self._read_all()
        return self.events

    # -- faults

    def _start(self, name: str) -> Client:
        self._lives[name] = life = self._lives.get(name, 0) + 1
        client = Client(name, life, iter(()))  # type: ignore[arg-type]
        work = self._produce if name.startswith("producer") else self._transform
        client.steps = work(client)
        self._clients.append(client)
        return client

    def _step(self) -> None:
        client = self._random.choice(self._clients)
        if client.paused and self._random.random() < 0.98:
            return
        client.paused = False
        try:
            next(client.steps)
        except StopIteration:
            self._clients.remove(client)

    def _inject_fault(self) -> None:
        """Kill the broker or a client, or pause a client until others replace it."""
        fault = self._random.choice(("broker", "kill", "replace", "stall"))
        client = self._random.choice([each for each in self._clients if each.name != "reader"])
        if fault == "broker":
            self._write(BROKER, Operation.KILL)
            self._broker_life += 1
            self._broker.restart()
        elif client.life != self._lives[client.name]:
            return  # it is fenced already
        elif fault == "kill":
            self._clients.remove(client)
            self._write(client.process, Operation.KILL)
            self._start(client.name)
            self._rebalance(client.name)
        elif fault == "replace":
            client.paused = True
            self._write(client.process, Operation.PAUSE)
            self._start(client.name)
            self._rebalance(client.name)
        else:
            client.paused = True
            self._write(client.process, Operation.PAUSE)
            self._rebalance(client.name)

    def _rebalance(self, name: str) -> None:
        """Start a new generation in which partitions move between members."""
        if name in self._broker.members:
            self._broker.join(self._broker.members[::-1])

    def _write(
        self, process: str, operation: Operation, phase: Phase = Phase.OK, **fields: Any
    ) -> None:
        time = len(self.events)
        fields.setdefault("since", time - 1)
        self.events.append(Event(time, process, operation, phase, **fields))

    # -- clients

    def _request(self, request: Callable[[], T]) -> Generator[None, None, T]:
        """Send a request to the broker, and again if it crashes before the response."""
        while True:
            life = self._broker_life
            yield
            if life == self._broker_life:
                response = request()
                yield
                if life == self._broker_life:
                    return response

    def _recorded_request(
        self, client: Client, operation: Operation, request: Callable[[], T], **fields: Any
    ) -> Generator[None, None, T]:
        """Send a request and record it and its response. Raises RequestRejected."""
        self._write(client.process, operation, Phase.INVOKED, **fields)
        try:
            response = yield from self._request(request)
        except RequestRejected as error:
            self._write(client.process, operation, Phase.FAIL, error=str(error), **fields)
            raise
        if operation is Operation.SEND:
            fields["offset"] = response
        self._write(client.process, operation, **fields)
        return response

    def _init(self, client: Client) -> Generator[None, None, int]:
        name = client.name
        request = partial(self._broker.init, name)
        return self._recorded_request(client, Operation.INIT, request, transactional_id=name)

    def _begin(self, client: Client) -> str:
        name = f"{client.process}#{next(self._names)}"
        self._write(client.process, Operation.BEGIN, transaction=name)
        return name

    def _send(
        self, client: Client, epoch: int, transaction: str, place: Place, source: int = -1
    ) -> Steps:
        value = next(self._values)
        yield from self._recorded_request(
            client,
            Operation.SEND,
            lambda: self._broker.send(client.name, epoch, place, value),
            transaction=transaction,
            place=place,
            value=value,
            source=source,
        )

    def _end(self, client: Client, epoch: int, transaction: str, commit: bool) -> Steps:
        operation = Operation.COMMIT if commit else Operation.ABORT
        fields: dict[str, Any] = {"transaction": transaction}
        self._write(client.process, operation, Phase.INVOKED, **fields)
        while True:
            life = self._broker_life
            try:
                yield from self._run_until_crash(life, self._broker.end(client.name, epoch, commit))
            except RequestRejected as error:
                self._write(client.process, operation, Phase.FAIL, error=str(error), **fields)
                raise
            yield
            if life == self._broker_life:
                self._write(client.process, operation, **fields)
                return

    def _run_until_crash(self, life: int, steps: Steps) -> Steps:
        """Run the broker's steps until it crashes."""
        yield
        while life == self._broker_life:
            try:
                next(steps)
            except StopIteration:
                return
            yield

    def _produce(self, client: Client) -> Steps:
        try:
            epoch = yield from self._init(client)
            while not self._stopping:
                transaction = self._begin(client)
                for _ in range(self._random.randint(1, 4)):
                    place = self._random.choice([*INPUTS, *SIDES])
                    yield from self._send(client, epoch, transaction, place)
                commit = self._random.random() > ABORTED
                yield from self._end(client, epoch, transaction, commit)
        except RequestRejected:
            yield from self._restart_rejected(client)

    def _restart_rejected(self, client: Client) -> Steps:
        """Restart a rejected client, unless it was replaced."""
        if client.life == self._lives[client.name]:
            self._start(client.name)
        yield

    def _transform(self, client: Client) -> Steps:
        try:
            epoch = yield from self._init(client)
            while not self._is_drained():
                generation = self._broker.generation
                for place in self._broker.assigned(client.name):
                    position = yield from self._request(partial(self._broker.committed, place))
                    if position is not None:
                        yield from self._transform_from(
                            client, epoch, generation, place, max(position, 0)
                        )
        except RequestRejected:
            yield from self._restart_rejected(client)

    def _is_drained(self) -> bool:
        """Return True if only transformers run, and they have no input left."""
        has_other_clients = any(not each.name.startswith("transformer") for each in self._clients)
        return (
            self._stopping
            and not has_other_clients
            and all(
                not self._broker.fetch(
                    place, max(self._broker.offsets.get(place, 0), 0), READ_COMMITTED
                )[1]
                for place in INPUTS
            )
        )

    def _transform_from(
        self, client: Client, epoch: int, generation: int, place: Place, position: int
    ) -> Steps:
        end, records = yield from self._request(
            lambda: self._broker.fetch(place, position, READ_COMMITTED)
        )
        if not records:
            return
        records = records[: self._random.randint(1, 5)]
        end = records[-1][0] + 1
        self._write_fetch(
            Operation.POLL, client.process, place, READ_COMMITTED, position, end, records
        )
        transaction = self._begin(client)
        for _, value in records:
            out = self._random.choice(OUTPUTS)
            yield from self._send(client, epoch, transaction, out, source=value)
        yield from self._recorded_request(
            client,
            Operation.OFFSETS,
            lambda: self._broker.send_offsets(client.name, epoch, generation, {place: end}),
            transaction=transaction,
            group=GROUP,
            place=place,
            offset=end,
        )
        commit = self._stopping or self._random.random() > ABORTED
        yield from self._end(client, epoch, transaction, commit)

    # -- readers

    def _write_fetch(
        self,
        operation: Operation,
        process: str,
        place: Place,
        isolation: str,
        begin: int,
        end: int,
        records: list[tuple[int, int]],
    ) -> None:
        self._write(
            process,
            operation,
            place=place,
            isolation=isolation,
            begin=begin,
            end=end,
            records=tuple(records),
        )

    def _observe(self) -> Steps:
        positions = {
            (place, each): 0 for place in PLACES for each in (READ_COMMITTED, READ_UNCOMMITTED)
        }
        while not self._stopping:
            yield
            place = self._random.choice(PLACES)
            isolation = self._random.choice((READ_COMMITTED, READ_UNCOMMITTED))
            begin = positions[place, isolation]
            end, records = self._broker.fetch(place, begin, isolation)
            positions[place, isolation] = end
            self._write_fetch(Operation.POLL, "reader", place, isolation, begin, end, records)
            self._sample(place)

    def _sample(self, place: Place) -> None:
        stable, end = self._broker.stable(place), len(self._broker.logs[place])
        self._write(
            "reader", Operation.STABLE, place=place, offset=stable, isolation=READ_COMMITTED
        )
        self._write("reader", Operation.END, place=place, offset=end)
        committed = self._broker.committed(place) if place in INPUTS else None
        if committed is not None:
            self._write("reader", Operation.COMMITTED, place=place, offset=committed, group=GROUP)

    def _read_all(self) -> None:
        for place in PLACES:
            self._sample(place)
            for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
                end, records = self._broker.fetch(place, 0, isolation)
                self._write_fetch(Operation.READ, "reader", place, isolation, 0, end, records)
