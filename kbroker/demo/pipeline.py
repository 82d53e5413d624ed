"""Producer and Spark job side by side, as one loop over what they report.

The order of things: weather first, for the job reads it once as a table; departures as soon as the
stream runs; when the last departure is acknowledged the job is told to finish what is there.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from . import DemoError
from .directory import Directory, Topics
from .processes import Event, OwnBroker, Worker
from .report import Console
from .requirements import Spark

_SILENCE_S = 180
"""Neither producer nor Spark says anything for so long: something is stuck."""
_SECOND_HALF_S = 20
"""An interruption must strike while the producer is sending: until it has struck, the second half
is spread over so long."""


@dataclass
class Interruption:
    """What was killed, when, and how long it took to be back."""

    produced: int
    processed: int
    batch: int
    broker_back_s: float | None = None
    spark_back_s: float | None = None


@dataclass
class Outcome:
    """What a run has measured."""

    rows: int
    produced: int = 0
    processed: int = 0
    batches: int = 0
    late_rows: int = 0
    started: float = 0.0
    produced_s: float = 0.0
    """From the first departure to the last acknowledgement."""
    streamed_s: float = 0.0
    """From the first departure to the last figure written."""
    interruption: Interruption | None = None

    @property
    def rows_per_second(self) -> float:
        """Departures per second, from the first one sent to the last figure written."""
        return self.rows / self.streamed_s

    @property
    def produced_per_second(self) -> float:
        """Departures per second that the producer got acknowledged."""
        return self.rows / self.produced_s


@dataclass
class Pipeline:
    """One run. `run` blocks until Spark has written everything.

    Parameters:
        bootstrap: the broker's address.
        broker: the demo's own broker; None when it is somebody else's, which is never killed.
        rows: how many departures there are.
        interrupt: kill Spark, and the own broker, half way.
    """

    bootstrap: str
    broker: OwnBroker | None
    topics: Topics
    directory: Directory
    spark: Spark
    rows: int
    interrupt: bool
    console: Console
    events: SimpleQueue[Event] = field(default_factory=SimpleQueue)

    def __post_init__(self) -> None:
        self.outcome = Outcome(self.rows)
        self._began = time.monotonic()
        self._job_began = self._began
        self._weather = 0
        self._spark_does = "starts"
        self._paused = False
        self._armed = False
        self._batch: int | None = None

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            DemoError: the producer or Spark failed, or the interruption could not take place.
        """
        self._producer = self._start_producer()
        self._job = self._start_job()
        try:
            while not self._handle(self._next()):
                pass
        finally:
            self._producer.kill()
            self._job.kill()
            shutil.rmtree(self.directory.scratch, ignore_errors=True)
        if self.interrupt and self.outcome.interruption is None:
            raise DemoError("The run was over before it could be interrupted: take more --rows.")
        return self.outcome

    def _next(self) -> Event:
        for _ in range(_SILENCE_S):
            try:
                return self.events.get(timeout=1)
            except Empty:
                if self.broker and self.broker.ended:
                    raise DemoError(f"The broker has ended; {self.broker.log} says why.") from None
                self._show()
        raise DemoError(
            f"Nothing has happened for {_SILENCE_S} s; see the logs in {self.directory.path}."
        )

    def _handle(self, event: Event) -> bool:
        """Act on one event; True when the job has finished."""
        if event.sender.killed:
            return False
        if event.name in ("failed", "exit"):
            self._check_end(event)
        elif event.sender is self._producer:
            self._hear_producer(event.name, event.fields)
        else:
            self._hear_job(event.name, event.fields)
        return event.name == "finished"

    def _hear_producer(self, name: str, fields: dict[str, Any]) -> None:
        outcome = self.outcome
        match name:
            case "weather":
                self._weather = fields["records"]
            case "weather-complete":
                self._job.tell("start")
                self.console.line("weather", f"{self._weather:,} records are in")
                self._show()
            case "departures":
                outcome.produced = fields["records"]
                self._show()
            case "paused":
                self._paused = True
                self._go_on_if_due()
            case "departures-complete":
                outcome.produced_s = time.monotonic() - outcome.started
                self._job.tell("finish")

    def _hear_job(self, name: str, fields: dict[str, Any]) -> None:
        outcome = self.outcome
        match name:
            case "weather":
                self._spark_does = f"has read {fields['rows']:,} hours of weather"
                self._show()
            case "batch":
                outcome.batches += 1
                outcome.processed = fields["records"]
                outcome.late_rows += fields["late"]
                self._batch = fields["batch"]
                self._show()
                self._go_on_if_due()
            case "writing":
                self._hear_batch_begin(fields["batch"])
            case "drained":
                outcome.streamed_s = time.monotonic() - outcome.started
                self._show()

    def _hear_batch_begin(self, batch: int) -> None:
        """A batch is computed and its figures are being written; the first one is empty."""
        outcome, interruption = self.outcome, self.outcome.interruption
        if not outcome.started:
            took = self._since(self._began)
            self.console.line("Spark", f"{self._spark_name} streams, {took} after its start")
            outcome.started = time.monotonic()
            self._producer.tell("go")
        elif interruption and interruption.spark_back_s is None:
            interruption.spark_back_s = time.monotonic() - self._job_began
            self.console.line("back", f"Spark after {self._since(self._job_began)}")
        elif self._armed and outcome.produced > self._half:
            self._interrupt(batch)

    @property
    def _half(self) -> int:
        return self.rows // 2

    def _go_on_if_due(self) -> None:
        """Let a producer that waits half way go on once Spark has come a good part of the way."""
        if self._paused and self.outcome.processed >= self.rows // 4:
            self._paused, self._armed = False, True
            self._producer.tell("go")

    def _interrupt(self, batch: int) -> None:
        """Kill broker and Spark while a batch is being written and the producer is sending."""
        self._armed = False
        if self.outcome.produced >= self.rows:
            raise DemoError("The producer was done before the interruption: take more --rows.")
        if self.broker:
            self.broker.kill()
        self._job.kill()
        outcome = self.outcome
        outcome.interruption = Interruption(outcome.produced, outcome.processed, batch)
        what = "broker and Spark" if self.broker else "Spark (not the broker, it is not ours)"
        self.console.line(
            "kill -9",
            f"{what} in the middle of batch {batch}, the producer at {outcome.produced:,}",
        )
        self._producer.tell("hurry")
        if self.broker:
            seconds = self.broker.start()
            outcome.interruption.broker_back_s = seconds
            self.console.line("back", f"broker after {seconds:.1f} s at {self.bootstrap}")
        self._job_began = time.monotonic()
        self._job = self._start_job()
        self._job.tell("start")
        if outcome.produced_s:
            self._job.tell("finish")

    def _check_end(self, event: Event) -> None:
        """Raise unless the worker that has ended was done."""
        is_producer = event.sender is self._producer
        if event.name == "exit" and event.fields["code"] == 0 and is_producer:
            return
        who = "The producer" if is_producer else "Spark"
        log = event.sender.log
        reason = event.fields.get("reason") or f"exit code {event.fields['code']}"
        raise DemoError(f"{who} stopped: {reason} (more in {log})")

    def _show(self) -> None:
        """What is going on right now."""
        outcome = self.outcome
        if not outcome.started:
            text = f"{self._spark_name} {self._spark_does} · {self._since(self._began)}"
            self.console.passing("Spark", text)
        elif outcome.interruption and outcome.interruption.spark_back_s is None:
            text = f"Spark starts again · {self._since(self._job_began)}"
            self.console.passing("back", f"{text} · producer at {outcome.produced:,}")
        elif outcome.streamed_s:
            self.console.passing("Spark", "computes the figures by hour of day")
        else:
            rate = outcome.processed / max(time.monotonic() - outcome.started, 0.001)
            self.console.progress(outcome.processed, outcome.produced, self.rows, rate, self._batch)

    @property
    def _spark_name(self) -> str:
        return f"PySpark {self.spark.version} on Java {self.spark.java}"

    def _since(self, moment: float) -> str:
        return f"{time.monotonic() - moment:.1f} s"

    def _start_producer(self) -> Worker:
        options = [f"--bootstrap={self.bootstrap}", f"--rows={self.rows}"]
        options += [f"--departures={self.topics.departures}", f"--weather={self.topics.weather}"]
        if self.interrupt:
            rate = max(1, (self.rows - self._half) // _SECOND_HALF_S)
            options += [f"--pause-at={self._half}", f"--rate={rate}"]
        log, scratch = self.directory.log("producer"), self.directory.scratch
        return Worker("kbroker.demo.produce", options, self.events, log, scratch)

    def _start_job(self) -> Worker:
        options = [f"--bootstrap={self.bootstrap}", f"--directory={self.directory.spark}"]
        options += [f"--departures={self.topics.departures}", f"--weather={self.topics.weather}"]
        options += [f"--delays={self.topics.delays}", f"--batch-rows={self._batch_rows()}"]
        environment = {
            "PYSPARK_SUBMIT_ARGS": "pyspark-shell",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.directory.scratch),
        }
        log, scratch = self.directory.log("spark"), self.directory.scratch
        return Worker("kbroker.demo.job", options, self.events, log, scratch, environment)

    def _batch_rows(self) -> int:
        """Rows per micro-batch: eight micro-batches for a year."""
        return max(5_000, self.rows // 8)
