"""Rolling restarts of three nodes under client load, and Kafka's tools for replicas."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.clients import WORKERS, ClientProcess, ScriptProcess, eventually
from harness.nodes import CLUSTERS, NODES, Nodes, wait_until_in_sync
from harness.places import COMPAT, WORK, environment_python
from harness.streams import StreamsApplication, Work
from harness.tools import Shell, Tools, Transcript
from harness.traffic import Feeder
from test_spark import ENVIRONMENT
from test_streams import counted, line, once, words

CLIENT = "several nodes"
PYTHON = ("kafka-python-3", "confluent-kafka", "aiokafka")
# Without kafka-python: 3.0.12 loses a request to a coordinator that refuses the connection, and
# hangs.
TRANSACTIONAL = ("confluent-kafka", "aiokafka", "java-4.4")
TRANSCRIPTS = sorted((COMPAT / "tools" / "nodes").glob("*.txt"))
PLAIN, COMMITTED = "rolled", "rolled-transactions"
PAUSE_SECONDS = 0.1
DOWN_SECONDS = 1.0
SESSION_MS = 60_000

Produced = list[str]


@pytest.fixture(scope="module")
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nodes]:
    option = request.config.getoption
    kind = CLUSTERS[option("--cluster") or option("--broker")]
    cluster: Nodes = kind(tmp_path_factory.mktemp("nodes"), {})
    try:
        cluster.start()
        wait_until_in_sync(cluster)
        yield cluster
    finally:
        cluster.kill()


class Application:
    """A step that runs repeatedly in its own thread, until stopped or until it raises an error."""

    def __init__(self, name: str, step: Callable[[], object]) -> None:
        self.name = name
        self.steps = 0
        self._step = step
        self._error: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set() and self._error is None:
            try:
                self._step()
                self.steps += 1
            except Exception as error:  # noqa: BLE001  # `check` raises it again
                self._error = error
            time.sleep(PAUSE_SECONDS)

    def check(self) -> None:
        if self._error is not None:
            raise AssertionError(f"{self.name}: {self._error}") from self._error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(90)
        assert not self._thread.is_alive(), f"{self.name} hangs"
        self.check()


def rolling_restart(nodes: Nodes, *applications: Application) -> None:
    """Stop and start one node after the other. All applications continue in each state."""
    for node in NODES:
        nodes.stop_node(node)
        time.sleep(DOWN_SECONDS)
        wait_for_progress(*applications)
        nodes.start_node(node)
        wait_until_in_sync(nodes)
        wait_for_progress(*applications)


def wait_for_progress(*applications: Application) -> None:
    """Wait until each application has started and completed a step."""
    before = [each.steps for each in applications]
    deadline = time.monotonic() + 60
    for each, steps in zip(applications, before, strict=True):
        while each.steps < steps + 2:
            each.check()
            assert time.monotonic() < deadline, f"{each.name} makes no progress"
            time.sleep(0.05)


def producing(process: ClientProcess, done: Produced) -> Callable[[], None]:
    """Return a step of an idempotent producer that must not fail."""
    numbers = itertools.count()
    process("transactional", producer="me", identity=None)

    def step() -> None:
        values = [f"{process.name} {next(numbers)}" for _ in range(10)]
        records = [{"value": value, "partition": n % 3} for n, value in enumerate(values)]
        answers = process("send", producer="me", topic=PLAIN, records=records)
        assert all("offset" in answer for answer in answers), answers
        done.extend(values)

    return step


def transacting(process: ClientProcess, done: Produced) -> Callable[[], None]:
    """Return a step of a transactional producer that must not fail: one transaction."""
    numbers = itertools.count()
    process("transactional", producer="me", identity=f"rolled-{process.name}")

    def step() -> None:
        values = [f"{process.name} {next(numbers)}" for _ in range(10)]
        process("begin", producer="me")
        records = [{"value": value, "partition": n % 3} for n, value in enumerate(values)]
        answers = process("send", producer="me", topic=COMMITTED, records=records)
        assert all("offset" in answer for answer in answers), answers
        process("end", producer="me", commit=True)
        done.extend(values)

    return step


@pytest.fixture
def start(nodes: Nodes, tmp_path: Path) -> Iterator[Callable[[str, str], ClientProcess]]:
    """Return a function that starts a client process. The role is part of its log's name."""
    running: list[ClientProcess] = []

    def one(library: str, role: str) -> ClientProcess:
        log = tmp_path / f"{library}-{role}.err"
        running.append(ClientProcess(WORKERS[library], nodes.address, log))
        return running[-1]

    yield one
    for each in running:
        each.kill()


def values_of(reader: ClientProcess, topic: str, count: int, **options: Any) -> Counter[str]:
    """Return how often each value is in a topic."""
    rows = reader("read", topic=topic, count=count, **options)
    return Counter(row["value"] for row in rows)


def test_clients_continue_through_rolling_restart(
    nodes: Nodes, start: Callable[[str, str], ClientProcess], tools: Tools
) -> None:
    """No application gets an error, and no record is lost or duplicated."""
    helper = start("confluent-kafka", "helper")
    for topic in (PLAIN, COMMITTED):
        helper.admin("create_topic", name=topic, partitions=3, replication=3)
    plain: Produced = []
    committed: Produced = []
    applications = []
    members = {}
    for library in PYTHON:
        step = producing(start(library, "producer"), plain)
        applications.append(Application(f"{library}, producer", step))
        members[library] = start(library, "member")
        group = {"topics": [PLAIN], "group": f"rolled-{library}", "session_ms": SESSION_MS}
        members[library]("join", member="me", **group)
    for library in TRANSACTIONAL:
        step = transacting(start(library, "transactions"), committed)
        applications.append(Application(f"{library}, transactions", step))
    wait_for_progress(*applications)
    rolling_restart(nodes, *applications)
    for application in applications:
        application.stop()
    assert values_of(helper, PLAIN, len(plain)) == Counter(plain)
    read = {"isolation": "read_committed"}
    assert values_of(helper, COMMITTED, len(committed), **read) == Counter(committed)
    for library, member in members.items():
        received = eventually(
            lambda member=member: Counter(row["value"] for row in member("rows", member="me")),
            lambda seen: set(seen) >= set(plain),
            f"what the member of {library} receives",
        )
        assert received == Counter(plain), library
        member("commit", member="me")
        offsets = member("committed", group=f"rolled-{library}", topic=PLAIN)
        assert sum(offsets.values()) == len(plain), library
    completed = tools.run(
        "kafka-console-consumer",
        *("--bootstrap-server", nodes.address, "--topic", COMMITTED, "--from-beginning"),
        *("--isolation-level", "read_committed", "--max-messages", str(len(committed))),
        *("--timeout-ms", "20000"),
    )
    assert Counter(completed.stdout.splitlines()) == Counter(committed)


@pytest.fixture
def spark(nodes: Nodes, tmp_path: Path) -> Iterator[ScriptProcess]:
    command = [str(COMPAT / "spark" / "driver.py"), str(WORK / ENVIRONMENT), nodes.address]
    if (WORK / f"{ENVIRONMENT}-jars" / "lib").exists():
        command.append(str(WORK / f"{ENVIRONMENT}-jars" / "lib"))
    python = str(environment_python(ENVIRONMENT))
    process = ScriptProcess("spark", [python, *command], tmp_path / "spark.err")
    yield process
    process.kill()


def test_spark_query_loses_no_records_in_rolling_restart(
    nodes: Nodes,
    start: Callable[[str, str], ClientProcess],
    spark: ScriptProcess,
    tmp_path: Path,
) -> None:
    """The query copies a topic. No record is lost, but Spark's sink may duplicate records."""
    source, sink = "rolled-source", "rolled-sink"
    helper, writer = start("confluent-kafka", "helper"), start("confluent-kafka", "producer")
    for topic in (source, sink):
        helper.admin("create_topic", name=topic, partitions=3, replication=3)
    done: Produced = []
    numbers = itertools.count()

    def produce() -> None:
        values = [str(next(numbers)) for _ in range(10)]
        records = [{"value": value} for value in values]
        answers = writer("produce", topic=source, records=records, idempotent=True, linger_ms=5)
        assert all("offset" in answer for answer in answers), answers
        done.extend(values)

    copied = [0]

    def copy() -> None:
        before = copied[0]
        while copied[0] <= before:
            copied[0] = spark("copied")
            time.sleep(PAUSE_SECONDS)

    spark("begin_copy", source=source, sink=sink, checkpoint=str(tmp_path / "checkpoint"))
    producer, query = Application("producer", produce), Application("query", copy)
    rolling_restart(nodes, producer, query)
    query.stop()
    producer.stop()
    spark("end_copy")
    assert set(values_of(helper, sink, len(done))) == set(done)


def test_streams_application_counts_exactly_once_in_rolling_restart(
    nodes: Nodes, start: Callable[[str, str], ClientProcess], tmp_path: Path
) -> None:
    helper = start("confluent-kafka", "helper")
    for topic in ("lines", "counts"):
        helper.admin("create_topic", name=topic, partitions=2, replication=3)
    feeder = Feeder(nodes.address, line)
    session = {"consumer.session.timeout.ms": str(SESSION_MS)}
    streams = StreamsApplication("words", nodes.address, tmp_path, settings=session)
    with Work(nodes, streams, feeder, "counts") as work:
        counting = Application("Streams", work.wait_for_more)
        rolling_restart(nodes, counting)
        counting.stop()
        lines = feeder.finish()
        results, _ = work.results(words(lines).total())
    assert counted(results) == once(lines)


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_tool_transcript_matches_on_three_nodes(
    path: Path, nodes: Nodes, tools: Tools, tmp_path: Path, bless: bool
) -> None:
    """Kafka's own tools print the same as on three nodes of Apache Kafka."""
    shell = Shell(tools, nodes.name, {"BROKER": nodes.address, "TMP": str(tmp_path)})
    transcript = Transcript.parse(path.read_text())
    differences = []
    for step in transcript.commands():
        seen = shell.differs(step)
        if seen is not None:
            differences.append("\n".join([step.text(), "the answer was:", *seen]))
            step.bless(shell.broker, seen)
    if bless:
        path.write_text(transcript.text())
    assert not differences or bless, "\n\n".join(differences)
