"""Main loop of the demo, driven by the events of the producer and the Spark job.

The weather is produced first, because the job reads it once as a table. The departures follow when
the stream is running. When the last departure is acknowledged, the job finishes the remaining
records.
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

# Maximum time without any event before the run fails, in seconds.
_SILENCE_S = 180
# Minimum duration of the second half of the producer's run until the interruption, in seconds: the
# interruption must occur while the producer is sending.
_SECOND_HALF_S = 20


@dataclass
class Interruption:
    """Progress at the kill, and the time until broker and Spark were back."""

    produced: int
    processed: int
    batch: int
    broker_back_s: float | None = None
    spark_back_s: float | None = None


@dataclass
class Outcome:
    """Measurements of a run."""

    rows: int
    produced: int = 0
    processed: int = 0
    batches: int = 0
    late_rows: int = 0
    started: float = 0.0
    # Seconds from the first departure to the last acknowledgement.
    produced_s: float = 0.0
    # Seconds from the first departure to the last result written.
    streamed_s: float = 0.0
    interruption: Interruption | None = None

    @property
    def rows_per_second(self) -> float:
        """Departures per second, from the first one sent to the last result written."""
        return self.rows / self.streamed_s

    @property
    def produced_per_second(self) -> float:
        """Acknowledged departures per second."""
        return self.rows / self.produced_s


@dataclass
class Pipeline:
    """One run; `run` blocks until Spark has written all results.

    Args:
        bootstrap: Address of the broker.
        broker: The demo's own broker; None for an external one, which is never killed.
        topics: Topics of the run.
        directory: Work directory.
        spark: Versions of Spark and Java, for messages.
        rows: Number of departures.
        interrupt: Kill Spark, and the demo's own broker, half way.
        console: Receives progress.
        events: Receives the events of producer and Spark.
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
        self._spark_status = "starts"
        self._paused = False
        self._armed = False
        self._batch: int | None = None

    def run(self) -> Outcome:
        """Run to the end.

        Returns:
            The measurements.

        Raises:
            DemoError: The producer or Spark failed, or the run ended before the interruption.
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
            raise DemoError("The run ended before the interruption: increase --rows.")
        return self.outcome

    def _next(self) -> Event:
        for _ in range(_SILENCE_S):
            try:
                return self.events.get(timeout=1)
            except Empty:
                if self.broker and self.broker.ended:
                    raise DemoError(f"The broker has ended; see {self.broker.log}.") from None
                self._show_progress()
        raise DemoError(f"No progress for {_SILENCE_S} s; see the logs in {self.directory.path}.")

    def _handle(self, event: Event) -> bool:
        """Process one event; return True when the job has finished."""
        if event.sender.killed:
            return False
        if event.name in ("failed", "exit"):
            self._check_end(event)
        elif event.sender is self._producer:
            self._on_producer_event(event.name, event.fields)
        else:
            self._on_job_event(event.name, event.fields)
        return event.name == "finished"

    def _on_producer_event(self, name: str, fields: dict[str, Any]) -> None:
        outcome = self.outcome
        match name:
            case "weather":
                self._weather = fields["records"]
            case "weather-complete":
                self._job.send_command("start")
                self.console.line("weather", f"{self._weather:,} records produced")
                self._show_progress()
            case "departures":
                outcome.produced = fields["records"]
                self._show_progress()
            case "paused":
                self._paused = True
                self._resume_if_due()
            case "departures-complete":
                outcome.produced_s = time.monotonic() - outcome.started
                self._job.send_command("finish")

    def _on_job_event(self, name: str, fields: dict[str, Any]) -> None:
        outcome = self.outcome
        match name:
            case "weather":
                self._spark_status = f"has read {fields['rows']:,} hours of weather"
                self._show_progress()
            case "batch":
                outcome.batches += 1
                outcome.processed = fields["records"]
                outcome.late_rows += fields["late"]
                self._batch = fields["batch"]
                self._show_progress()
                self._resume_if_due()
            case "writing":
                self._on_batch_begin(fields["batch"])
            case "drained":
                outcome.streamed_s = time.monotonic() - outcome.started
                self._show_progress()

    def _on_batch_begin(self, batch: int) -> None:
        """Handle the start of a batch's write; the first batch is empty."""
        outcome, interruption = self.outcome, self.outcome.interruption
        if not outcome.started:
            took = self._elapsed(self._began)
            self.console.line("Spark", f"{self._spark_name} streams, {took} after its start")
            outcome.started = time.monotonic()
            self._producer.send_command("go")
        elif interruption and interruption.spark_back_s is None:
            interruption.spark_back_s = time.monotonic() - self._job_began
            self.console.line("back", f"Spark after {self._elapsed(self._job_began)}")
        elif self._armed and outcome.produced > self._pause_after:
            self._interrupt(batch)

    @property
    def _pause_after(self) -> int:
        return self.rows // 2

    def _resume_if_due(self) -> None:
        """Resume a producer that waits half way once Spark has processed enough records."""
        if self._paused and self.outcome.processed >= self.rows // 4:
            self._paused, self._armed = False, True
            self._producer.send_command("go")

    def _interrupt(self, batch: int) -> None:
        """Kill broker and Spark while a batch is being written and the producer is sending."""
        self._armed = False
        if self.outcome.produced >= self.rows:
            raise DemoError("The producer finished before the interruption: increase --rows.")
        if self.broker:
            self.broker.kill()
        self._job.kill()
        outcome = self.outcome
        outcome.interruption = Interruption(outcome.produced, outcome.processed, batch)
        what = "broker and Spark" if self.broker else "Spark (not the broker, which is external)"
        self.console.line(
            "kill -9",
            f"{what} during batch {batch}, producer at {outcome.produced:,}",
        )
        self._producer.send_command("hurry")
        if self.broker:
            seconds = self.broker.start()
            outcome.interruption.broker_back_s = seconds
            self.console.line("back", f"broker after {seconds:.1f} s at {self.bootstrap}")
        self._job_began = time.monotonic()
        self._job = self._start_job()
        self._job.send_command("start")
        if outcome.produced_s:
            self._job.send_command("finish")

    def _check_end(self, event: Event) -> None:
        """Raise DemoError unless the worker has ended successfully."""
        is_producer = event.sender is self._producer
        if event.name == "exit" and event.fields["code"] == 0 and is_producer:
            return
        who = "The producer" if is_producer else "Spark"
        log = event.sender.log
        reason = event.fields.get("reason") or f"exit code {event.fields['code']}"
        raise DemoError(f"{who} stopped: {reason} (more in {log})")

    def _show_progress(self) -> None:
        """Show the current progress."""
        outcome = self.outcome
        if not outcome.started:
            text = f"{self._spark_name} {self._spark_status} · {self._elapsed(self._began)}"
            self.console.transient_line("Spark", text)
        elif outcome.interruption and outcome.interruption.spark_back_s is None:
            text = f"Spark restarts · {self._elapsed(self._job_began)}"
            self.console.transient_line("back", f"{text} · producer at {outcome.produced:,}")
        elif outcome.streamed_s:
            self.console.transient_line("Spark", "computes the results by hour of day")
        else:
            rate = outcome.processed / max(time.monotonic() - outcome.started, 0.001)
            self.console.progress(outcome.processed, outcome.produced, self.rows, rate, self._batch)

    @property
    def _spark_name(self) -> str:
        return f"PySpark {self.spark.version} on Java {self.spark.java}"

    def _elapsed(self, moment: float) -> str:
        return f"{time.monotonic() - moment:.1f} s"

    def _start_producer(self) -> Worker:
        options = [f"--bootstrap={self.bootstrap}", f"--rows={self.rows}"]
        options += [f"--departures={self.topics.departures}", f"--weather={self.topics.weather}"]
        if self.interrupt:
            rate = max(1, (self.rows - self._pause_after) // _SECOND_HALF_S)
            options += [f"--pause-at={self._pause_after}", f"--rate={rate}"]
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
        """Return the rows per micro-batch: eight micro-batches for a year."""
        return max(5_000, self.rows // 8)
