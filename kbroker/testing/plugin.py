"""The pytest plugin: `kbroker` is a fresh, empty broker for each test.

This module is imported at the start of every pytest run of an environment that has kbroker in it:
it imports nothing of kbroker before a fixture is used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from .external import ExternalKafka
    from .host import BrokerThread
    from .local import KafkaHandle, LocalBroker
    from .session_broker import SessionBroker

HERE = Path(__file__).parent
NO_KAFKA = "kbroker_no_kafka"
"""Where the report of a test says why there is no Kafka to run against."""
BROKERS = "_kbroker_brokers"
"""Where a test keeps the brokers that it uses: its faults are looked at, and its report shows them."""
SESSION_BROKER = "_kbroker_session"
"""Where a session keeps the broker that its tests have in common."""
SESSION_KAFKA = "_kbroker_session_kafka"
"""The same where that broker runs elsewhere."""
BOOTSTRAP_VARIABLE = "KBROKER_TEST_BOOTSTRAP"
SETTLE_TIME_VARIABLE = "KBROKER_TEST_SETTLE_TIME"
LOCAL_ONLY_OPTIONS = (
    "config",
    "persist",
    "disk",
    "nodes",
    "tls",
    "users",
    "tokens",
    "certificates",
    "acls",
    "super_users",
    "schema_registry",
)
"""What a marker can ask for that only a broker of one's own has."""


class KafkaUnreachable(Exception):
    """There is no Kafka where `--kbroker-bootstrap` says; the report of the test ends the run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kbroker", "a Kafka broker for each test")
    group.addoption(
        "--kbroker-bootstrap",
        metavar="HOST:PORT",
        default=os.environ.get(BOOTSTRAP_VARIABLE),
        help="run against this Kafka instead; tests that need a broker of their own are skipped",
    )
    group.addoption(
        "--kbroker-settle-time",
        metavar="SECONDS",
        type=float,
        default=float(os.environ.get(SETTLE_TIME_VARIABLE, "1")),
        help="how long nothing may change in that Kafka before it counts as idle (1)",
    )
    group.addoption(
        "--kbroker-log",
        metavar="LEVEL",
        choices=["debug", "info", "warning", "error"],
        help="what brokers log, in the reports of failed tests: debug, info, warning (default), error",
    )
    group.addoption(
        "--kbroker-dump-dir",
        metavar="DIRECTORY",
        help="write what the brokers of failed tests hold into DIRECTORY, for kbroker serve --data-dir",
    )
    group.addoption(
        "--kbroker-shared",
        action="store_true",
        help="under pytest-xdist: kbroker_session is one broker for all workers",
    )
    parser.addini(
        "kbroker_env",
        type="linelist",
        default=[],
        help="environment variables that hold the address of the broker while a test runs",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "kbroker(topics=None, config=None, persist=False, disk=False, nodes=1, tls=False, users=None, "
        "tokens=(), certificates=(), acls=None, super_users=()): what the broker of this test has: topics as "
        "NAME: PARTITIONS, Kafka's properties, data in tmp_path, a disk that fails on demand, so many nodes, "
        "a certificate, who logs in, by a password, a token or a certificate, who may do what, and who may "
        "do everything",
    )
    if config.getoption("kbroker_bootstrap"):
        # Where KafkaTestCase finds them.
        environment = pytest.MonkeyPatch()
        environment.setenv(BOOTSTRAP_VARIABLE, config.getoption("kbroker_bootstrap"))
        environment.setenv(SETTLE_TIME_VARIABLE, str(config.getoption("kbroker_settle_time")))
        config.add_cleanup(environment.undo)
    level = config.getoption("kbroker_log")
    if level:
        logger = logging.getLogger("kbroker")
        config.add_cleanup(partial(logger.setLevel, logger.level))
        logger.setLevel(level.upper())


@pytest.fixture(scope="session")
def kbroker_thread() -> Iterator[BrokerThread]:
    """The thread in which all brokers of this run live."""
    from .patched_threads import check_threads

    check_threads()
    from .host import BrokerThread

    thread = BrokerThread()
    yield thread
    thread.close()


@pytest.fixture
def kbroker_factory(
    request: pytest.FixtureRequest, kbroker_thread: BrokerThread
) -> Iterator[Callable[..., LocalBroker]]:
    """Makes brokers: `kbroker_factory(topics={"orders": 3}, config={...})`; see `LocalBroker`."""
    if request.config.getoption("kbroker_bootstrap"):
        _skip_with_external()
    from .local import LocalBroker

    made: list[LocalBroker] = []

    def make(**settings: Any) -> LocalBroker:
        broker = LocalBroker(thread=kbroker_thread, **settings)
        made.append(broker)
        _brokers_of(request.node).append(broker)
        return broker

    yield make
    for broker in made:
        broker.close()


@pytest.fixture
def kbroker(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KafkaHandle]:
    """A fresh, empty broker; with `--kbroker-bootstrap` the Kafka that runs there.

    That one has nothing at the end of what the test has made there.
    """
    wanted = _marker_options(request)
    with contextlib.ExitStack() as stack:
        broker: KafkaHandle
        if request.config.getoption("kbroker_bootstrap"):
            external: ExternalKafka = request.getfixturevalue("kbroker_external")
            _prepare_external(external, wanted, stack)
            broker = external
        else:
            if wanted.pop("persist", False):
                wanted["data_dir"] = str(request.getfixturevalue("tmp_path") / "kbroker-data")
            broker = request.getfixturevalue("kbroker_factory")(**wanted)
        for name in request.config.getini("kbroker_env"):
            monkeypatch.setenv(name, broker.bootstrap_servers)
        yield broker


@pytest.fixture(scope="session")
def kbroker_session(
    request: pytest.FixtureRequest, kbroker_thread: BrokerThread
) -> Iterator[KafkaHandle]:
    """One broker for all tests of this process that ask for it. What a test arms ends with it.

    With `--kbroker-shared` it is one for all workers of pytest-xdist, in a process of its own.
    """
    if request.config.getoption("kbroker_bootstrap"):
        kafka = request.getfixturevalue("kbroker_external")
        with _session_kafka(request, kafka):
            yield kafka
    elif request.config.getoption("kbroker_shared"):
        from .shared import shared_broker

        with shared_broker(_directory_of_run(request)) as bootstrap:
            kafka = _external(request, bootstrap, kbroker_thread)
            with _session_kafka(request, kafka):
                yield kafka
            kafka.close()
    else:
        from .session_broker import SessionBroker

        broker = SessionBroker(thread=kbroker_thread)
        request.session.__dict__[SESSION_BROKER] = broker
        yield broker
        del request.session.__dict__[SESSION_BROKER]
        broker.close()


@contextlib.contextmanager
def _session_kafka(request: pytest.FixtureRequest, kafka: ExternalKafka) -> Iterator[None]:
    """Inside, each test begins with this one as it is then."""
    kafka.begin_test()
    request.session.__dict__[SESSION_KAFKA] = kafka
    yield
    del request.session.__dict__[SESSION_KAFKA]


def _directory_of_run(request: pytest.FixtureRequest) -> Path:
    """A directory that all workers of pytest-xdist have in common, and no other run."""
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def kbroker_external(
    request: pytest.FixtureRequest, kbroker_thread: BrokerThread
) -> Iterator[ExternalKafka]:
    """The Kafka that `--kbroker-bootstrap` names; a test that needs it is skipped without."""
    bootstrap = request.config.getoption("kbroker_bootstrap")
    if not bootstrap:
        pytest.skip("there is no --kbroker-bootstrap HOST:PORT")
    kafka = _connected(request, bootstrap, kbroker_thread)
    yield kafka
    kafka.close()


def _external(
    request: pytest.FixtureRequest, bootstrap: str, thread: BrokerThread
) -> ExternalKafka:
    from .external import ExternalKafka

    settle_seconds = request.config.getoption("kbroker_settle_time")
    return ExternalKafka(bootstrap, thread, settle_seconds=settle_seconds)


def _connected(
    request: pytest.FixtureRequest, bootstrap: str, thread: BrokerThread
) -> ExternalKafka:
    """The Kafka at an address. Raises KafkaUnreachable when there is none: no test could do anything."""
    from kbroker.client.errors import CannotConnect, ClientError

    try:
        kafka = _external(request, bootstrap, thread)
        kafka.topics()
    except (ValueError, ClientError) as error:
        reason = error.reasons if isinstance(error, CannotConnect) else error
        message = (
            f"--kbroker-bootstrap {bootstrap}: {reason}; name a Kafka that runs, or leave the "
            "option (and KBROKER_TEST_BOOTSTRAP) out: then each test has a broker of its own"
        )
        raise KafkaUnreachable(message) from None
    return kafka


@pytest.fixture
def kafka_topic(kbroker: KafkaHandle) -> str:
    """A topic with a name that no other test has; it goes with the broker, or is deleted."""
    from kbroker.runtime.ids import random_uuid

    name = f"topic-{random_uuid().hex[:12]}"
    kbroker.create_topic(name)
    return name


def _marker_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the markers of a test, its class and its module say: the nearest one wins, name by name."""
    from .given import topics_of

    wanted: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("kbroker"))):
        _check_marker(marker)
        said = dict(marker.kwargs)
        topics, config = said.pop("topics", None) or {}, said.pop("config", None) or {}
        wanted["topics"] = wanted.get("topics", {}) | topics_of(topics)
        wanted["config"] = wanted.get("config", {}) | config
        wanted |= said
    if wanted.get("disk") and wanted.get("persist"):
        raise pytest.UsageError(
            "@pytest.mark.kbroker: disk=True is a disk in memory, and persist=True keeps nothing of "
            "it; leave one of them out"
        )
    return wanted


def _check_marker(marker: pytest.Mark) -> None:
    unknown = sorted(set(marker.kwargs) - {"topics", *LOCAL_ONLY_OPTIONS})
    if marker.args or unknown:
        raise pytest.UsageError(
            f"@pytest.mark.kbroker takes topics, {', '.join(LOCAL_ONLY_OPTIONS)}, not {unknown or marker.args}"
        )


def _prepare_external(
    broker: ExternalKafka, wanted: dict[str, Any], stack: contextlib.ExitStack
) -> None:
    """A test that began is ended by `stack`."""
    if any(wanted.get(name) for name in LOCAL_ONLY_OPTIONS) or wanted.get("acls") is not None:
        _skip_with_external()
    stack.enter_context(broker.one_test())
    for name, partitions in wanted.get("topics", {}).items():
        broker.recreate_topic(name, partitions)


def _skip_with_external() -> NoReturn:
    raise pytest.skip.Exception(
        "this test needs a broker of its own, and --kbroker-bootstrap names another"
    )


def _brokers_of(item: pytest.Item) -> list[LocalBroker]:
    brokers: list[LocalBroker] = item.__dict__.setdefault(BROKERS, [])
    return brokers


def _session_broker_of(item: pytest.Item) -> SessionBroker | None:
    """The broker that all tests have in common, if this one uses it."""
    uses_it = "kbroker_session" in _fixtures_of(item)
    broker: SessionBroker | None = item.session.__dict__.get(SESSION_BROKER) if uses_it else None
    return broker


def _brokers_used_by(item: pytest.Item) -> list[LocalBroker]:
    """All brokers of a test."""
    shared = _session_broker_of(item)
    return [*_brokers_of(item), *([shared] if shared else [])]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that passed with a fault that never fired did not test what it says."""
    yield
    for broker in _brokers_used_by(item):
        broker.check_faults()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """The broker that tests share is as new for the next one, but for its data."""
    try:
        yield
    finally:
        shared = _session_broker_of(item)
        if shared is not None:
            shared.reset()
        kafka: ExternalKafka | None = item.session.__dict__.get(SESSION_KAFKA)
        if kafka is not None and {"kbroker", "kbroker_session"} & set(_fixtures_of(item)):
            kafka.begin_test()


def _fixtures_of(item: pytest.Item) -> list[str]:
    names: list[str] = getattr(item, "fixturenames", [])
    return names


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report of a failure says what the brokers of the test saw.

    A skip that the kit asked for is one of the test, and not of a line in here.
    """
    by_kit = call.excinfo is not None and Path(call.excinfo.traceback[-1].path).parent == HERE
    report = yield
    if report.skipped and by_kit and isinstance(report.longrepr, tuple):
        path, line, _ = item.reportinfo()
        report.longrepr = (os.fspath(path), (line or 0) + 1, report.longrepr[2])
    if call.excinfo is not None and isinstance(call.excinfo.value, KafkaUnreachable):
        report.__dict__[NO_KAFKA] = item.session.shouldstop = str(call.excinfo.value)
    if report.failed and call.when != "teardown":
        keep = item.config.getoption("kbroker_dump_dir")
        for number, broker in enumerate(_brokers_used_by(item), 1):
            text = broker.report()
            if keep:
                text += "\n" + _dump(broker, Path(keep) / _file_name(item), number)
            report.sections.append((f"kbroker {number}", text))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Without a Kafka to run against the run ends. Under pytest-xdist that is for the process to do
    that has started the workers, and what these report comes here too."""
    reason: str | None = report.__dict__.get(NO_KAFKA)
    if reason is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.exit(reason)


def _file_name(item: pytest.Item) -> str:
    return re.sub(r"[^\w.-]+", "_", item.nodeid)


def _dump(broker: LocalBroker, directory: Path, number: int) -> str:
    """Write what a broker holds into a directory; says where it is."""
    import shutil

    from kbroker.protocol.errors import KafkaError

    target = directory / str(number)
    try:
        snapshot = broker.snapshot()
    except (RuntimeError, KafkaError) as error:  # it is stopped, or its disk is broken
        return f"not kept: {error}"
    shutil.rmtree(target, ignore_errors=True)
    snapshot.save(target)
    return f"kept: kbroker serve --data-dir {target}"
