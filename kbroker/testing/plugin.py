"""The pytest plugin: the fixture `kbroker` is an empty broker for each test.

pytest imports this module at the start of every run in an environment where kbroker is installed.
It therefore imports other modules of kbroker only when a fixture is used.
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
    from .broker_thread import BrokerThread
    from .external import ExternalKafka
    from .local import KafkaHandle, LocalBroker
    from .session_broker import SessionBroker

HERE = Path(__file__).parent
# Attribute of a test report: the error if the Kafka of `--kbroker-bootstrap` cannot be reached.
NO_KAFKA = "kbroker_no_kafka"
# Attribute of a test item: the brokers of the test. Their faults are checked after the test, and
# their state is part of a failure report.
BROKERS = "_kbroker_brokers"
# Attribute of the pytest session: the broker of `kbroker_session` in this process.
SESSION_BROKER = "_kbroker_session"
# Attribute of the pytest session: the broker of `kbroker_session` in another process.
SESSION_KAFKA = "_kbroker_session_kafka"
BOOTSTRAP_VARIABLE = "KBROKER_TEST_BOOTSTRAP"
SETTLE_TIME_VARIABLE = "KBROKER_TEST_SETTLE_TIME"
# Options of the marker that only a broker in this process supports.
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


class KafkaUnreachable(Exception):
    """The Kafka of `--kbroker-bootstrap` cannot be reached; this ends the run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kbroker", "a Kafka broker for each test")
    group.addoption(
        "--kbroker-bootstrap",
        metavar="HOST:PORT",
        default=os.environ.get(BOOTSTRAP_VARIABLE),
        help="run against this Kafka instead; skip tests that need a broker in this process",
    )
    group.addoption(
        "--kbroker-settle-time",
        metavar="SECONDS",
        type=float,
        default=float(os.environ.get(SETTLE_TIME_VARIABLE, "1")),
        help="seconds without a change after which that Kafka counts as idle (default: 1)",
    )
    group.addoption(
        "--kbroker-log",
        metavar="LEVEL",
        choices=["debug", "info", "warning", "error"],
        help="minimum level of the brokers' log lines in reports of failed tests (default: warning)",
    )
    group.addoption(
        "--kbroker-dump-dir",
        metavar="DIRECTORY",
        help="save the data of the brokers of failed tests below DIRECTORY, for kbroker serve "
        "--data-dir",
    )
    group.addoption(
        "--kbroker-shared",
        action="store_true",
        help="under pytest-xdist: share one broker of kbroker_session between all workers",
    )
    parser.addini(
        "kbroker_env",
        type="linelist",
        default=[],
        help="environment variables to set to the address of the broker while a test runs",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "kbroker(topics=None, config=None, persist=False, disk=False, nodes=1, tls=False, users=None, "
        "tokens=(), certificates=(), acls=None, super_users=(), schema_registry=False): options of "
        "the broker of this test: topics with their partitions, broker properties, data in "
        "tmp_path, a disk that fails on demand, number of nodes, TLS, users with a password, a "
        "token or a certificate, ACLs, super users, and a schema registry",
    )
    if config.getoption("kbroker_bootstrap"):
        # KafkaTestCase reads these variables.
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
    """Return the thread in which all brokers of this run live."""
    from .patched_threads import check_threads

    check_threads()
    from .broker_thread import BrokerThread

    thread = BrokerThread()
    yield thread
    thread.close()


@pytest.fixture
def kbroker_factory(
    request: pytest.FixtureRequest, kbroker_thread: BrokerThread
) -> Iterator[Callable[..., LocalBroker]]:
    """Return a function that starts brokers: `kbroker_factory(topics={"orders": 3})`.

    The function takes the arguments of `LocalBroker`. The brokers are closed after the test.
    """
    if request.config.getoption("kbroker_bootstrap"):
        _skip_with_external()
    from .local import LocalBroker

    with contextlib.ExitStack() as stack:

        def start_broker(**settings: Any) -> LocalBroker:
            broker = LocalBroker(thread=kbroker_thread, **settings)
            stack.callback(broker.close)
            _brokers_of(request.node).append(broker)
            return broker

        yield start_broker


@pytest.fixture
def kbroker(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KafkaHandle]:
    """Return an empty broker, or with `--kbroker-bootstrap` the Kafka at that address.

    On that Kafka, topics and groups of the test are deleted after the test.
    """
    options = _marker_options(request)
    with contextlib.ExitStack() as stack:
        broker: KafkaHandle
        if request.config.getoption("kbroker_bootstrap"):
            external: ExternalKafka = request.getfixturevalue("kbroker_external")
            _prepare_external(external, options, stack)
            broker = external
        else:
            if options.pop("persist", False):
                options["data_dir"] = str(request.getfixturevalue("tmp_path") / "kbroker-data")
            broker = request.getfixturevalue("kbroker_factory")(**options)
        for name in request.config.getini("kbroker_env"):
            monkeypatch.setenv(name, broker.bootstrap_servers)
        yield broker


@pytest.fixture(scope="session")
def kbroker_session(
    request: pytest.FixtureRequest, kbroker_thread: BrokerThread
) -> Iterator[KafkaHandle]:
    """Return one broker for all tests of this process that use this fixture.

    Faults that a test has armed are removed after it. With `--kbroker-shared` all workers of
    pytest-xdist share one broker in its own process.
    """
    if request.config.getoption("kbroker_bootstrap"):
        kafka = request.getfixturevalue("kbroker_external")
        with _session_kafka(request, kafka):
            yield kafka
    elif request.config.getoption("kbroker_shared"):
        from .shared_broker import shared_broker

        with (
            shared_broker(_directory_of_run(request)) as bootstrap,
            contextlib.closing(_new_external(request, bootstrap, kbroker_thread)) as kafka,
            _session_kafka(request, kafka),
        ):
            yield kafka
    else:
        from .session_broker import SessionBroker

        broker = SessionBroker(thread=kbroker_thread)
        request.session.__dict__[SESSION_BROKER] = broker
        yield broker
        del request.session.__dict__[SESSION_BROKER]
        broker.close()


@contextlib.contextmanager
def _session_kafka(request: pytest.FixtureRequest, kafka: ExternalKafka) -> Iterator[None]:
    """Use a Kafka for all tests of the session; existing topics and groups belong to no test."""
    kafka.begin_test()
    request.session.__dict__[SESSION_KAFKA] = kafka
    yield
    del request.session.__dict__[SESSION_KAFKA]


def _directory_of_run(request: pytest.FixtureRequest) -> Path:
    """Return a directory that all workers of one pytest-xdist run share."""
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def kbroker_external(
    request: pytest.FixtureRequest, kbroker_thread: BrokerThread
) -> Iterator[ExternalKafka]:
    """Return the Kafka of `--kbroker-bootstrap`. Without this option, skip the test."""
    bootstrap = request.config.getoption("kbroker_bootstrap")
    if not bootstrap:
        pytest.skip("--kbroker-bootstrap HOST:PORT is not set")
    kafka = _connect(request, bootstrap, kbroker_thread)
    yield kafka
    kafka.close()


def _new_external(
    request: pytest.FixtureRequest, bootstrap: str, thread: BrokerThread
) -> ExternalKafka:
    from .external import ExternalKafka

    settle_seconds = request.config.getoption("kbroker_settle_time")
    return ExternalKafka(bootstrap, thread, settle_seconds=settle_seconds)


def _connect(request: pytest.FixtureRequest, bootstrap: str, thread: BrokerThread) -> ExternalKafka:
    """Connect to the Kafka at an address.

    Raises:
        KafkaUnreachable: There is no Kafka at the address, so no test can run.
    """
    from kbroker.client.errors import CannotConnect, ClientError

    try:
        kafka = _new_external(request, bootstrap, thread)
        kafka.topics()
    except (ValueError, ClientError) as error:
        reason = error.reasons if isinstance(error, CannotConnect) else error
        message = (
            f"--kbroker-bootstrap {bootstrap}: {reason}; pass the address of a running Kafka, or "
            "remove the option (and KBROKER_TEST_BOOTSTRAP) to give each test its own broker"
        )
        raise KafkaUnreachable(message) from None
    return kafka


@pytest.fixture
def kafka_topic(kbroker: KafkaHandle) -> str:
    """Return the name of a new topic with one partition, which no other test uses."""
    from kbroker.runtime.ids import random_uuid

    name = f"topic-{random_uuid().hex[:12]}"
    kbroker.create_topic(name)
    return name


def _marker_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Merge the options of the markers of a test, its class and its module.

    If several markers set a topic, property or option, the innermost marker applies.
    """
    from .arguments import topics_of

    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("kbroker"))):
        _check_marker(marker)
        marker_options = dict(marker.kwargs)
        topics, config = (
            marker_options.pop("topics", None) or {},
            marker_options.pop("config", None) or {},
        )
        options["topics"] = options.get("topics", {}) | topics_of(topics)
        options["config"] = options.get("config", {}) | config
        options |= marker_options
    if options.get("disk") and options.get("persist"):
        raise pytest.UsageError(
            "@pytest.mark.kbroker: disk=True keeps data in memory, persist=True in a directory; "
            "remove one of them"
        )
    return options


def _check_marker(marker: pytest.Mark) -> None:
    unknown = sorted(set(marker.kwargs) - {"topics", *LOCAL_ONLY_OPTIONS})
    if marker.args or unknown:
        raise pytest.UsageError(
            f"@pytest.mark.kbroker: invalid arguments {unknown or marker.args} "
            f"(valid: topics, {', '.join(LOCAL_ONLY_OPTIONS)})"
        )


def _prepare_external(
    broker: ExternalKafka, options: dict[str, Any], stack: contextlib.ExitStack
) -> None:
    """Begin a test on an external Kafka: create empty topics; `stack` ends the test.

    Skip the test if a marker has options that an external Kafka does not support.
    """
    if any(options.get(name) for name in LOCAL_ONLY_OPTIONS) or options.get("acls") is not None:
        _skip_with_external()
    stack.enter_context(broker.one_test())
    for name, partitions in options.get("topics", {}).items():
        broker.recreate_topic(name, partitions)


def _skip_with_external() -> NoReturn:
    raise pytest.skip.Exception(
        "this test needs a broker in this process; run it without --kbroker-bootstrap"
    )


def _brokers_of(item: pytest.Item) -> list[LocalBroker]:
    brokers: list[LocalBroker] = item.__dict__.setdefault(BROKERS, [])
    return brokers


def _session_broker_of(item: pytest.Item) -> SessionBroker | None:
    """Return the broker of `kbroker_session` if the test uses it."""
    uses_it = "kbroker_session" in _fixtures_of(item)
    broker: SessionBroker | None = item.session.__dict__.get(SESSION_BROKER) if uses_it else None
    return broker


def _brokers_used_by(item: pytest.Item) -> list[LocalBroker]:
    """Return all brokers in this process that a test uses."""
    shared = _session_broker_of(item)
    return [*_brokers_of(item), *([shared] if shared else [])]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a passed test if one of its faults has hit nothing."""
    yield
    for broker in _brokers_used_by(item):
        broker.check_faults()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Reset the brokers that tests share: remove faults, and keep the data."""
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
    """Add the state of the brokers to the report of a failed test.

    If the test kit has skipped the test, report the line of the test instead of a line of the kit.
    """
    is_skip_of_kit = (
        call.excinfo is not None and Path(call.excinfo.traceback[-1].path).parent == HERE
    )
    report = yield
    if report.skipped and is_skip_of_kit and isinstance(report.longrepr, tuple):
        path, line, _ = item.reportinfo()
        report.longrepr = (os.fspath(path), (line or 0) + 1, report.longrepr[2])
    if call.excinfo is not None and isinstance(call.excinfo.value, KafkaUnreachable):
        report.__dict__[NO_KAFKA] = item.session.shouldstop = str(call.excinfo.value)
    if report.failed and call.when != "teardown":
        dump_directory = item.config.getoption("kbroker_dump_dir")
        for number, broker in enumerate(_brokers_used_by(item), 1):
            text = _report(broker)
            if dump_directory:
                text += "\n" + _dump(broker, Path(dump_directory) / _file_name(item), number)
            report.sections.append((f"kbroker {number}", text))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """End the run if the Kafka of `--kbroker-bootstrap` cannot be reached.

    Under pytest-xdist only the controlling process ends the run; it gets the reports of all
    workers.
    """
    reason: str | None = report.__dict__.get(NO_KAFKA)
    if reason is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.exit(reason)


def _file_name(item: pytest.Item) -> str:
    return re.sub(r"[^\w.-]+", "_", item.nodeid)


def _report(broker: LocalBroker) -> str:
    """Return the state of a broker, or the reason why there is none: it must not end the run."""
    try:
        return broker.report()
    except Exception as error:  # noqa: BLE001 (a broker may fail in any way)
        return f"broker {broker.bootstrap_servers}: no report: {error!r}"


def _dump(broker: LocalBroker, directory: Path, number: int) -> str:
    """Save the data of a broker in a directory. Return a line for the report."""
    import shutil

    from kbroker.protocol.errors import KafkaError

    target = directory / str(number)
    try:
        snapshot = broker.snapshot()
        shutil.rmtree(target, ignore_errors=True)
        snapshot.save(target)
    except (RuntimeError, KafkaError, ValueError, OSError) as error:
        # The broker is stopped or has several nodes, or a disk is broken or full.
        return f"not saved: {error}"
    return f"saved; to inspect it: kbroker serve --data-dir {target}"
