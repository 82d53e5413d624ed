"""The order of steps in a run, with workers that only record their commands."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kbroker.demo import DemoError, pipeline
from kbroker.demo.directory import Directory, Topics
from kbroker.demo.pipeline import Pipeline
from kbroker.demo.processes import Event
from kbroker.demo.report import Console
from kbroker.demo.requirements import Spark

ROWS = 1_000


class Worker:
    """A stand-in for a worker process that records its commands."""

    instances: ClassVar[list[Worker]] = []

    def __init__(self, module: str, arguments: list[str], events: Any, log: Path, *rest: Any):
        self.name = module.rpartition(".")[2]
        self.arguments = arguments
        self.log = log
        self.commands: list[str] = []
        self.killed = False
        Worker.instances.append(self)

    def send_command(self, command: str) -> None:
        self.commands.append(command)

    def kill(self) -> None:
        self.killed = True


class Broker:
    """A stand-in for the demo's own broker."""

    log = Path("broker.log")
    ended = False

    def __init__(self) -> None:
        self.history: list[str] = []

    def kill(self) -> None:
        self.history.append("kill")

    def start(self) -> float:
        self.history.append("start")
        return 0.1


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    monkeypatch.setattr(pipeline, "Worker", Worker)
    Worker.instances = []
    return Worker.instances


class Run:
    """A pipeline with scripted events."""

    def __init__(self, tmp_path: Path, *, interrupt: bool = False, broker: Any = None) -> None:
        self.out = io.StringIO()
        self.pipeline = Pipeline(
            "there:1", broker, Topics("d", "w", "r"), Directory(tmp_path),
            Spark("4.0.0", 17), ROWS, interrupt, Console(self.out),
        )  # fmt: skip

    def feed(self, *script: tuple[str, str] | tuple[str, str, dict[str, Any]]) -> None:
        """Emit events of the last worker with each name."""
        remaining = iter(script)

        def next_event() -> Event:
            name, event, *fields = next(remaining)
            sender: Any = [worker for worker in Worker.instances if worker.name == name][-1]
            return Event(sender, event, fields[0] if fields else {})

        self.pipeline._next = next_event  # type: ignore[method-assign]

    def run(self) -> pipeline.Outcome:
        return self.pipeline.run()


def batch(number: int, records: int, late: int = 0) -> tuple[str, str, dict[str, Any]]:
    fields = {"batch": number, "rows": 100, "records": records, "seconds": 1.0, "late": late}
    return ("job", "batch", fields)


def sent(records: int) -> tuple[str, str, dict[str, Any]]:
    return ("produce", "departures", {"records": records})


def writing(number: int) -> tuple[str, str, dict[str, Any]]:
    return ("job", "writing", {"batch": number})


BEGIN = (
    ("produce", "weather", {"records": 50}),
    ("produce", "weather-complete"),
    ("job", "session", {"spark": "4.0.0"}),
    ("job", "weather", {"rows": 50}),
    writing(0),
)
END = (("job", "drained"), ("job", "finished"))


def test_uninterrupted_run_sends_commands_in_order(tmp_path: Path, workers: list[Worker]) -> None:
    run = Run(tmp_path)
    run.feed(
        *BEGIN, sent(500), writing(1), batch(1, 400, late=2), sent(1000),
        ("produce", "departures-complete"), ("produce", "exit", {"code": 0}),
        writing(2), batch(2, 1000, late=1), *END,
    )  # fmt: skip
    outcome = run.run()
    producer, job = workers
    assert producer.commands == ["go"]
    assert job.commands == ["start", "finish"]
    assert (outcome.processed, outcome.batches, outcome.late_rows) == (1000, 2, 3)
    assert outcome.rows_per_second > 0
    assert outcome.interruption is None
    assert producer.killed
    assert job.killed
    assert "PySpark 4.0.0 on Java 17 streams" in run.out.getvalue()


def test_interruption_happens_during_batch_write(tmp_path: Path, workers: list[Worker]) -> None:
    broker = Broker()
    run = Run(tmp_path, interrupt=True, broker=broker)
    run.feed(
        *BEGIN, sent(500), ("produce", "paused"), writing(1), batch(1, 200), writing(2),
        batch(2, 400), sent(600), writing(3), writing(3), batch(3, 600), sent(1000),
        ("produce", "departures-complete"), ("produce", "exit", {"code": 0}), *END,
    )  # fmt: skip
    outcome = run.run()
    producer, first, second = workers
    assert broker.history == ["kill", "start"]
    assert first.killed
    assert "--pause-at=500" in producer.arguments
    assert producer.commands == ["go", "go", "hurry"]
    assert second.commands == ["start", "finish"]
    assert second.arguments == first.arguments
    assert outcome.interruption is not None
    assert (outcome.interruption.batch, outcome.interruption.produced) == (3, 600)
    assert outcome.interruption.processed == 400
    assert outcome.interruption.broker_back_s == 0.1
    assert outcome.interruption.spark_back_s is not None


def test_external_broker_is_never_killed(tmp_path: Path) -> None:
    run = Run(tmp_path, interrupt=True)
    run.feed(
        *BEGIN, ("produce", "paused"), batch(1, 400), sent(600), writing(2), writing(3), sent(1000),
        ("produce", "departures-complete"), *END,
    )  # fmt: skip
    outcome = run.run()
    assert outcome.interruption is not None
    assert outcome.interruption.broker_back_s is None
    assert "not the broker" in run.out.getvalue()


def test_last_events_of_killed_worker_are_ignored(tmp_path: Path, workers: list[Worker]) -> None:
    run = Run(tmp_path, interrupt=True)
    run.feed(
        *BEGIN, ("produce", "paused"), batch(1, 400), sent(600), writing(2), sent(1000),
        ("produce", "departures-complete"), *END,
    )  # fmt: skip
    original = run.pipeline._next

    def with_late_exit_event() -> Event:
        event = original()
        if event.name == "drained":
            killed: Any = workers[1]
            assert run.pipeline._handle(Event(killed, "exit", {"code": -9})) is False
        return event

    run.pipeline._next = with_late_exit_event  # type: ignore[method-assign]
    run.run()


def test_run_that_ends_before_interruption_fails(tmp_path: Path) -> None:
    run = Run(tmp_path, interrupt=True)
    run.feed(*BEGIN, sent(1000), ("produce", "departures-complete"), *END)
    with pytest.raises(DemoError, match="ended before the interruption"):
        run.run()


def test_interruption_after_last_record_fails(tmp_path: Path) -> None:
    run = Run(tmp_path, interrupt=True)
    run.feed(*BEGIN, ("produce", "paused"), batch(1, 400), sent(1000), writing(2))
    with pytest.raises(DemoError, match="finished before the interruption"):
        run.run()


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (("produce", "failed", {"reason": "no broker"}), "The producer stopped: no broker"),
        (("produce", "exit", {"code": 1}), "The producer stopped: exit code 1"),
        (("job", "failed", {"reason": "no topic"}), "Spark stopped: no topic"),
        (("job", "exit", {"code": 0}), "Spark stopped: exit code 0"),
    ],
)
def test_failed_worker_ends_run(
    tmp_path: Path, workers: list[Worker], event: Any, message: str
) -> None:
    (tmp_path / "spark.log").write_text("")
    run = Run(tmp_path)
    run.feed(*BEGIN, event)
    with pytest.raises(DemoError, match=message):
        run.run()
    assert all(worker.killed for worker in workers)


def test_missing_progress_ends_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_SILENCE_S", 1)
    with pytest.raises(DemoError, match="No progress"):
        Run(tmp_path).run()


def test_unexpected_broker_exit_ends_run(tmp_path: Path) -> None:
    broker = Broker()
    broker.ended = True
    with pytest.raises(DemoError, match=r"The broker has ended; see broker\.log"):
        Run(tmp_path, broker=broker).run()
