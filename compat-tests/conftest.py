"""Fixtures: one broker per pytest process, client processes, and the time that each client took."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.brokers import BROKERS, Broker
from harness.clients import (
    JAVA_CLIENTS,
    OTHER_CLIENTS,
    OTHERS_ONLY,
    PYTHON_CLIENTS,
    WORKERS,
    ClientProcess,
    Library,
)
from harness.codecs import WRITERS, records_of, topic_of
from harness.nodes import CLUSTERS
from harness.tools import Tools
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# A short minimum session timeout makes killed members and overdue transactions visible soon
# (kbroker checks transactions without this setting). Small segments make some segments roll.
PROPERTIES = {
    "group.min.session.timeout.ms": "1000",
    "log.segment.bytes": "1048576",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}

# Settings of brokers that tests kill. Apache Kafka restarts soon after SIGKILL, but aborts overdue
# transactions only every 5 s. If it did so earlier, it would report some as aborted without writing
# a marker, and their partitions would hang. Compaction and the expiry of share group members happen
# soon.
KILLABLE = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "5000",
    "log.cleaner.backoff.ms": "500",
    "group.share.min.session.timeout.ms": "6000",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.heartbeat.interval.ms": "1000",
}

# Files whose tests run in one process, so that the dump contains everything that they wrote.
DUMPED_FILES = frozenset(
    (
        "test_admin.py",
        "test_codecs.py",
        "test_consumer_groups.py",
        "test_dump_log.py",
        "test_groups.py",
        "test_java.py",
        "test_kcat.py",
        "test_lost_answers.py",
        "test_old_versions.py",
        "test_positions.py",
        "test_produce.py",
        "test_share_consumers.py",
        "test_transactions.py",
        "test_wrong_requests.py",
    )
)

Spawn = Callable[[str], ClientProcess]

_broker_logs = pytest.StashKey[list[Broker]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--broker", choices=sorted(BROKERS), default="kbroker")
    parser.addoption(
        "--cluster",
        choices=sorted(CLUSTERS),
        help="cluster of three nodes to test (default: a single --broker)",
    )
    parser.addoption(
        "--kills",
        type=int,
        default=1,
        help="number of times to kill a running Kafka Streams application",
    )
    parser.addoption(
        "--bless",
        action="store_true",
        help="overwrite the transcripts with the responses of the broker",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_broker_logs] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `client` with every Python library.

    The mark `everyone` adds all other libraries, and the mark `java` adds the Java client. The mark
    `needs` excludes libraries that lack an ability.
    """
    if "client" not in metafunc.fixturenames:
        return
    marks = list(metafunc.definition.iter_markers())
    if OTHERS_ONLY:
        able = OTHER_CLIENTS
    elif any(mark.name == "everyone" for mark in marks):
        able = PYTHON_CLIENTS + OTHER_CLIENTS
    else:
        able = PYTHON_CLIENTS
    if any(mark.name == "java" for mark in marks):
        able += JAVA_CLIENTS
    needed = [ability for mark in marks if mark.name == "needs" for ability in mark.args]
    able = tuple(one for one in able if all(getattr(one, ability) for ability in needed))
    metafunc.parametrize("client", able, ids=lambda one: one.name, scope="session")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip tests of kbroker's own features for other brokers.

    Only kbroker has the fault injection of its test kit, and SCRAM users in its settings.
    """
    is_about_kbroker = collection_path.name in ("test_fault_kinds.py", "test_security.py")
    return True if is_about_kbroker and config.getoption("--broker") != "kbroker" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the dump of all written logs last, because it stops the broker."""
    items.sort(key=lambda item: item.path.name == "test_dump_log.py")


class FileScheduling(LoadScopeScheduling):
    """Scheduler that assigns whole files to processes, and the files of the dump to one process."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "the dump" if file in DUMPED_FILES else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling:
    return FileScheduling(config, log)


@pytest.fixture(scope="session")
def make_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Broker]]:
    """Create, but do not start, brokers of the kind under test. The end of the run kills them."""
    kind = BROKERS[request.config.getoption("--broker")]
    made = request.config.stash[_broker_logs]

    def make(name: str, properties: dict[str, str] | None = None, **more: Any) -> Broker:
        settings = {**PROPERTIES, **(properties or {})}
        made.append(kind(tmp_path_factory.mktemp(name), settings, **more))
        return made[-1]

    yield make
    for one in made:
        one.kill()


@pytest.fixture(scope="session")
def broker(make_broker: Callable[..., Broker]) -> Broker:
    """Broker that most tests share."""
    one = make_broker("shared")
    one.start()
    return one


@pytest.fixture
def own_broker(make_broker: Callable[..., Broker]) -> Iterator[Broker]:
    """Broker of a single test, which may kill it."""
    one = make_broker("own", KILLABLE)
    one.start()
    yield one
    one.kill()


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    """Command-line tools of Kafka 4.4 in one JVM."""
    one = Tools("kafka-4.4", tmp_path_factory.mktemp("tools") / "jvm.err")
    yield one
    one.close()


@pytest.fixture(scope="session")
def old_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    """Command-line tools of Kafka 3.9 in one JVM."""
    one = Tools("kafka-3.9", tmp_path_factory.mktemp("old-tools") / "jvm.err")
    yield one
    one.close()


@pytest.fixture(scope="session")
def workers(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawn]:
    """One long-lived process per library, for tests that do not kill their clients."""
    directory = tmp_path_factory.mktemp("workers")
    running: dict[str, ClientProcess] = {}

    def get(name: str) -> ClientProcess:
        if name not in running:
            running[name] = ClientProcess(WORKERS[name], broker.address, directory / f"{name}.err")
        return running[name]

    yield get
    for one in running.values():
        one.close()


@pytest.fixture(scope="session")
def written(workers: Callable[[str], ClientProcess]) -> dict[str, Any]:
    """Write each topic of the codec matrix once and return the result or exception per topic."""
    outcome: dict[str, Any] = {}
    for library, codec in WRITERS:
        worker, topic = workers(library.name), topic_of(library, codec)
        try:
            # Some records have old timestamps, and the last of these tests run minutes later:
            # disable retention.
            workers("confluent-kafka").admin(
                "create_topic", name=topic, configs={"retention.ms": "-1"}
            )
            records = [{"partition": 0, **record} for record in records_of(library)]
            outcome[topic] = worker(
                "produce", topic=topic, records=records, codec=None if codec == "none" else codec
            )
        except Exception as error:  # noqa: BLE001 (shown by the test of this writer)
            outcome[topic] = error
    return outcome


@pytest.fixture
def spawn(tmp_path: Path, broker: Broker) -> Iterator[Callable[..., ClientProcess]]:
    """Start client processes of one test: spawn(library, address=that of the shared broker)."""
    numbers = itertools.count(1)
    running: list[ClientProcess] = []

    def start(library: Library, address: str | None = None) -> ClientProcess:
        log = tmp_path / f"client-{next(numbers)}.err"
        running.append(ClientProcess(library, address or broker.address, log))
        return running[-1]

    yield start
    for one in running:
        one.kill()


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    """Return True if transcripts are to be overwritten with the broker's responses."""
    return bool(request.config.getoption("--bless"))


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return a function that makes topic and group names unique to this test."""
    test = "".join(c if c.isalnum() else "-" for c in request.node.name).strip("-")
    return lambda what: f"{what}-{test}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Add the end of each broker's log to failed tests, and the client to every report."""
    report: pytest.TestReport = yield
    callspec = getattr(item, "callspec", None)
    client = callspec.params.get("client") if callspec is not None else None
    default = getattr(item.module, "CLIENT", "all clients")  # type: ignore[attr-defined]
    report.user_properties.append(("client", client.name if client else default))
    if report.failed:
        for one in item.config.stash[_broker_logs]:
            report.sections.append((f"{one.name} in {one.directory.name}", one.log_tail(15)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the time that each client took, to compare with the time budget."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, set[str]] = defaultdict(set)
    for reports in terminalreporter.stats.values():
        for report in reports:
            client = dict(getattr(report, "user_properties", [])).get("client")
            if client is not None:
                seconds[client] += report.duration
                tests[client].add(report.nodeid)
    terminalreporter.section("time per client")
    for client in sorted(seconds):
        line = f"{client:20} {len(tests[client]):4} tests {seconds[client]:7.1f} s"
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"{'sum':20} {'':10} {sum(seconds.values()):7.1f} s")
