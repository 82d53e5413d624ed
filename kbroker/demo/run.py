"""The demo from start to end: setup, run, checks and report."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from . import StartError, chart, data, readback, requirements, truth, verify
from .directory import Directory, Note, Topics
from .pipeline import Outcome, Pipeline
from .processes import OwnBroker
from .report import Console, shown

ALL_DEPARTURES = 336_776
_PARTITIONS = 4


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    directory: Path
    # Address of another Kafka cluster; None for the demo's own broker.
    against: str | None = None
    rows: int = ALL_DEPARTURES
    interrupt: bool = False
    # Keep the demo's broker running, or the topics on another Kafka cluster.
    keep: bool = False


class Demo:
    """One demo, to run or to check again.

    Args:
        options: Options of the command.
        out: Receives progress and results.

    Attributes:
        summary: Machine-readable result, available after a check.
    """

    def __init__(self, options: Options, out: TextIO) -> None:
        self.options = options
        self.console = Console(out)
        self.directory = Directory(options.directory)
        self.summary: dict[str, object] = {}
        # Broker restarts are part of the demo: suppress kafka-python's connection errors.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)

    def run(self) -> bool:
        """Run the demo; return True if all checks pass.

        Raises:
            StartError: A requirement is missing.
            DemoError: A process failed.
        """
        spark, files = requirements.check(), data.locate()
        began = time.monotonic()
        self.directory.renew()
        self.console.headline(
            f"kbroker demo · {self.options.rows:,} departures from New York, joined by Spark "
            "with the weather of their hour"
        )
        with self._broker(self.options.against) as (bootstrap, broker):
            topics = self._create_topics(bootstrap)
            pipeline = Pipeline(
                bootstrap, broker, topics, self.directory, spark,
                self.options.rows, self.options.interrupt, self.console,
            )  # fmt: skip
            outcome = pipeline.run()
            self._report_rates(outcome)
            note = Note(topics, self.options.rows, outcome.late_rows, self.options.against)
            self.directory.write_note(note)
            passed = self._check(bootstrap, files, note)
            self._report_locations(bootstrap, topics)
            self.summary |= _measurements(outcome, time.monotonic() - began)
            self._report_verdict(passed, time.monotonic() - began)
            self._keep_or_clean(bootstrap, broker, topics)
        return passed

    def check_again(self) -> bool:
        """Check the results and topics of an earlier run; return True if all checks pass.

        Raises:
            DemoError: There is no such run, or it cannot be read.
        """
        note = self.directory.read_note()
        files = data.locate()
        self.console.headline(f"kbroker demo · checking the run in {shown(self.directory.path)}")
        began = time.monotonic()
        with self._broker(note.against) as (bootstrap, _):
            passed = self._check(bootstrap, files, note)
            self._report_verdict(passed, time.monotonic() - began)
        return passed

    @contextmanager
    def _broker(self, against: str | None) -> Iterator[tuple[str, OwnBroker | None]]:
        if against:
            self.console.line("broker", f"{against} (external)")
            yield against, None
            return
        broker = OwnBroker(self.directory.path)
        try:
            seconds = broker.start()
            self.console.line("broker", f"{broker.bootstrap}, ready in {seconds:.1f} s")
            yield broker.bootstrap, broker
        finally:
            broker.stop()

    def _create_topics(self, bootstrap: str) -> Topics:
        from kafka.admin import KafkaAdminClient, NewTopic
        from kafka.errors import KafkaError, KafkaTimeoutError

        prefix = f"kbroker-demo-{int(time.time())}-" if self.options.against else ""
        topics = Topics(f"{prefix}departures", f"{prefix}weather", f"{prefix}delays")
        # The records are from 2013: with a retention time they would be deleted.
        forever = {"retention.ms": "-1"}
        compacted = {"cleanup.policy": "compact"}
        new = [
            NewTopic(topics.departures, _PARTITIONS, -1, topic_configs=forever),
            NewTopic(topics.weather, _PARTITIONS, -1, topic_configs=forever),
            NewTopic(topics.delays, _PARTITIONS, -1, topic_configs=compacted),
        ]
        try:
            admin = KafkaAdminClient(bootstrap_servers=bootstrap, bootstrap_timeout_ms=10_000)
            try:
                admin.create_topics(new)
            finally:
                admin.close()
        except KafkaTimeoutError as error:
            raise StartError(
                f"No response from {bootstrap}: check that Kafka is running."
            ) from error
        except KafkaError as error:
            raise StartError(f"Topics cannot be created at {bootstrap}: {error}") from error
        return topics

    def _check(self, bootstrap: str, files: data.Files, note: Note) -> bool:
        self.console.blank()
        self.console.transient_line("", "computing the expected results with csv and dict")
        expected = truth.compute(files.flights, files.weather, note.rows)
        groups = readback.topic_groups(bootstrap, note.topics.delays)
        hours = readback.parquet_hours(self.directory.hours)
        checks = []
        for check in self._run_checks(bootstrap, note, expected, groups, hours):
            self.console.check(check)
            checks.append(check)
        self.console.blank()
        self.console.table(groups)
        chart.save(hours, self.directory.chart)
        passed = all(check.passed for check in checks)
        self.summary |= {
            "ok": passed,
            "checks": [{**asdict(c), "differences": c.examples(), "ok": c.passed} for c in checks],
        }
        return passed

    def _run_checks(
        self,
        bootstrap: str,
        note: Note,
        expected: truth.Truth,
        groups: dict[truth.Group, dict[str, truth.Figures]],
        hours: dict[truth.Hour, truth.Figures],
    ) -> Iterator[verify.Check]:
        topics = note.topics
        self.console.transient_line("", "reading the topics back")
        for name, topic, digests, identity in (
            ("departures topic", topics.departures, expected.departures, truth.DEPARTURE_IDENTITY),
            ("weather topic", topics.weather, expected.weather, truth.WEATHER_IDENTITY),
        ):
            records = readback.records(bootstrap, topic)
            yield verify.check_records(name, digests, identity, records)
        yield verify.check_figures("delays topic", expected.groups, groups)
        in_files = readback.parquet_groups(self.directory.delays)
        yield verify.check_figures("delays Parquet", expected.groups, in_files)
        yield verify.check_figures("delays by hour", expected.hours, hours)
        yield verify.check_late(note.late_rows)

    def _report_rates(self, outcome: Outcome) -> None:
        self.console.line(
            "departures",
            f"{outcome.rows:,} in {outcome.streamed_s:.1f} s · {outcome.rows_per_second:,.0f} "
            f"rows/s through Spark in {outcome.batches} batches · producer "
            f"{outcome.produced_per_second:,.0f} records/s"
            + (" · interruption included" if outcome.interruption else ""),
        )

    def _report_locations(self, bootstrap: str, topics: Topics) -> None:
        self.console.blank()
        self.console.line("chart", shown(self.directory.chart))
        self.console.line(
            "results", f"{shown(self.directory.delays)} (Parquet), topic {topics.delays}"
        )
        self.console.line("logs", f"{shown(self.directory.path)}/*.log")
        if self.options.against is None:
            again = f"kbroker serve --data-dir {shown(self.directory.path / 'broker')}"
            self.console.line("topics", f"to serve them again: {again}")
        self.summary |= {
            "bootstrap": bootstrap,
            "topics": asdict(topics),
            "chart": str(self.directory.chart),
            "parquet": str(self.directory.delays),
        }

    def _report_verdict(self, passed: bool, seconds: float) -> None:
        what = (
            "all records and results are correct"
            if passed
            else "the results differ from the expected ones"
        )

        self.console.blank()
        self.console.verdict(passed, f"{what} · {seconds:.0f} s")

    def _keep_or_clean(self, bootstrap: str, broker: OwnBroker | None, topics: Topics) -> None:
        if self.options.keep and broker:
            self.console.line("broker", f"{bootstrap} keeps running; Ctrl+C stops it")
            with suppress(KeyboardInterrupt):
                broker.wait()
        elif not self.options.keep and broker is None:
            from kafka.admin import KafkaAdminClient

            admin = KafkaAdminClient(bootstrap_servers=bootstrap)
            admin.delete_topics(list(asdict(topics).values()))
            admin.close()


def _measurements(outcome: Outcome, seconds: float) -> dict[str, object]:
    return {
        "rows": outcome.rows,
        "rows_per_second": round(outcome.rows_per_second),
        "produced_per_second": round(outcome.produced_per_second),
        "batches": outcome.batches,
        "seconds": round(seconds, 1),
        "interruption": asdict(outcome.interruption) if outcome.interruption else None,
    }


def as_json(summary: dict[str, object]) -> str:
    """Return the summary as one line of JSON."""
    return json.dumps(summary, ensure_ascii=False)
