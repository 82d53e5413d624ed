"""The pytest plugin, in projects that use it."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme  # noqa: F401 (a run within this process must not be the first to load its compiled modules)

from kbroker.testing import LocalBroker, Snapshot

pytestmark = pytest.mark.slow

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a test file in a separate run of pytest."""
    monkeypatch.delenv(
        "PYTEST_XDIST_WORKER", raising=False
    )  # this run may itself be a worker of pytest-xdist
    pytester.makeini("[pytest]\nkbroker_env = KAFKA_BOOTSTRAP_SERVERS\n    MY_KAFKA\n")

    def run_file(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)

    return run_file


def test_each_test_has_its_own_broker(run: Run) -> None:
    result = run("""
        import os, pytest

        def test_one(kbroker):
            kbroker.produce("orders", "x")
            assert len(kbroker.wait_for("orders")) == 1

        def test_two(kbroker, kafka_topic):
            assert list(kbroker.topics()) == [kafka_topic]
            assert os.environ["KAFKA_BOOTSTRAP_SERVERS"] == kbroker.bootstrap_servers
            assert os.environ["MY_KAFKA"] == kbroker.bootstrap_servers

        @pytest.mark.kbroker(topics={"orders": 3}, config={"num.partitions": "5"}, persist=True)
        def test_three(kbroker, tmp_path):
            kbroker.produce("made", "x")
            assert kbroker.topics() == {"orders": 3, "made": 5}
            kbroker.restart()
            assert kbroker.records("made")[0].text == "x"
            assert (tmp_path / "kbroker-data").is_dir()

        def test_four(kbroker_factory, kbroker_session):
            a, b = kbroker_factory(topics={"t": 1}), kbroker_factory()
            assert (list(a.topics()), list(b.topics())) == (["t"], [])
            assert len({a.bootstrap_servers, b.bootstrap_servers, kbroker_session.bootstrap_servers}) == 3

        def test_the_environment_is_as_before():
            assert "MY_KAFKA" not in os.environ
    """)
    result.assert_outcomes(passed=5)


def test_application_authenticates_over_tls(run: Run) -> None:
    result = run("""
        import pytest
        from kafka import KafkaConsumer, KafkaProducer
        from kafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError

        USERS = {"shop": "pencil", "billing": 'a "b" \\\\c;'}
        ACLS = {"shop": ["WRITE topic orders"], "billing": ["READ topic ord*", "READ group *"]}
        pytestmark = pytest.mark.kbroker(topics=["orders", "invoices"], tls=True, users=USERS)

        @pytest.mark.kbroker(acls=ACLS)
        def test_rights(kbroker):
            producer = KafkaProducer(**kbroker.client("shop").kafka_python)
            producer.send("orders", b"1").get(10)
            with pytest.raises(TopicAuthorizationFailedError):
                producer.send("invoices", b"1").get(10)
            producer.close()
            settings = kbroker.client("billing", mechanism="PLAIN").kafka_python
            consumer = KafkaConsumer(
                "orders", group_id="g", auto_offset_reset="earliest", **settings
            )
            assert next(consumer).value == b"1"
            consumer.close()

        def test_a_wrong_password(kbroker):
            settings = kbroker.client("shop", password="pen").kafka_python
            with pytest.raises(KafkaTimeoutError):
                KafkaProducer(**settings, bootstrap_timeout_ms=500)

        def test_what_is_refused_says_what_to_do(kbroker_factory):
            with pytest.raises(ValueError, match="there is no user 'shopp'; did you mean shop"):
                kbroker_factory(users=USERS).client("shopp")
    """)
    result.assert_outcomes(passed=3)


def test_unfired_fault_fails_test(run: Run) -> None:
    result = run("""
        def test_nothing_happens(kbroker):
            kbroker.fault("Produce", error="NOT_LEADER_OR_FOLLOWER")

        def test_maybe(kbroker):
            kbroker.fault("Produce", error="NOT_LEADER_OR_FOLLOWER").optional()
    """)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*NOT_LEADER_OR_FOLLOWER for Produce never fired: saw no such*"])


def test_failed_test_reports_broker_state(run: Run) -> None:
    result = run("""
        def test_it(kbroker):
            kbroker.create_topic("orders", 2)
            assert kbroker.records("orders")
    """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- kbroker 1 -*", "topic orders: high watermarks 0, 0"])


def test_failed_setup_reports_broker_state(run: Run) -> None:
    result = run("""
        import pytest

        @pytest.fixture
        def service(kbroker):
            kbroker.create_topic("orders")
            kbroker.wait_for_group("billing", timeout=0.05)

        def test_it(service):
            pass
    """)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "*waited 0.05 s for group 'billing' Stable*",
            "*- kbroker 1 -*",
            "topic orders: high watermarks 0",
        ]
    )


def test_failed_test_reports_logs_and_saves_data(run: Run, tmp_path: Path) -> None:
    text = """
        def test_it(kbroker):
            kbroker.produce("orders", "kept")
            assert False
    """
    dump_directory, level = tmp_path / "kept", logging.getLogger("kbroker").level
    result = run(text, "--kbroker-dump-dir", str(dump_directory), "--kbroker-log", "debug")
    result.assert_outcomes(failed=1)
    assert logging.getLogger("kbroker").level == level, "the run must restore the log level"
    result.stdout.fnmatch_lines(
        ["log: * INFO topic orders created: *", "saved; to inspect it: kbroker serve *"]
    )
    (directory,) = dump_directory.glob("*test_it/1")
    with LocalBroker(load=Snapshot.load(directory)) as loaded:
        assert [record.text for record in loaded.records("orders")] == ["kept"]


def test_data_that_cannot_be_saved_is_reported(run: Run, tmp_path: Path) -> None:
    result = run(
        """
        def test_it(kbroker):
            kbroker.stop()
            assert False
        """,
        "--kbroker-dump-dir",
        str(tmp_path / "kept"),
    )
    result.stdout.fnmatch_lines(
        ["the broker is stopped; call start() first", "not saved: the broker is stopped*"]
    )


def test_shared_option_uses_one_broker_for_all_workers(run: Run) -> None:
    result = run(
        """
        def test_one(kbroker_session):
            kbroker_session.produce("orders", "x")
            assert len(kbroker_session.wait_for("orders")) == 1

        def test_two(kbroker_session):
            assert len(kbroker_session.records("orders")) == 1
        """,
        "--kbroker-shared",
    )
    result.assert_outcomes(passed=2)


def test_faults_on_session_broker_end_with_test(run: Run, tmp_path: Path) -> None:
    result = run(
        """
        import time
        import pytest

        @pytest.fixture
        def service(kbroker_session):
            return kbroker_session

        def test_a_fault_that_hits_nothing(service):
            service.fault("Produce", error="NOT_LEADER_OR_FOLLOWER").always()

        def test_time(service):
            assert service.faults.rules == []
            service.produce("t", "x")
            service.clock.advance(hours=25)
            service.clock.freeze()
            service.cap_versions("3.9")

        def test_real_time(service):
            assert abs(service.clock.now_ms() - time.time() * 1000) < 60_000
            assert service.faults.limits == {}
            service.expect_nothing("t")
            service.stop()

        def test_that_fails(service):
            assert service.records("t") == []
        """,
        "--kbroker-dump-dir",
        str(tmp_path / "kept"),
    )
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*NOT_LEADER_OR_FOLLOWER for Produce never fired: saw no such*",
            "*- kbroker 1 -*",
            "topic t: high watermarks 1",
            "saved; to inspect it: kbroker serve *",
        ]
    )


def test_invalid_marker_is_rejected(run: Run) -> None:
    result = run("""
        import pytest

        @pytest.mark.kbroker(topic="orders")
        def test_it(kbroker):
            pass
    """)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "*@pytest.mark.kbroker: invalid arguments *valid: topics, config, persist, disk, nodes, tls, users, *"
        ]
    )


def test_markers_of_module_class_and_test_are_merged(run: Run) -> None:
    """If several markers set a topic, property or option, the innermost marker applies."""
    result = run("""
        import pytest

        pytestmark = pytest.mark.kbroker(
            topics={"orders": 3, "bills": 1}, config={"num.partitions": 2, "log.retention.hours": 1}
        )

        def test_of_the_module(kbroker):
            assert kbroker.topics() == {"orders": 3, "bills": 1}

        @pytest.mark.kbroker(topics={"orders": 4}, persist=True)
        class TestThem:
            @pytest.mark.kbroker(topics=["made"], config={"num.partitions": 5})
            def test_all(self, kbroker, tmp_path):
                kbroker.produce("other", "x")
                assert kbroker.topics() == {"orders": 4, "bills": 1, "made": 1, "other": 5}
                kbroker.clock.advance(hours=2)
                assert kbroker.records("other") == []
                assert (tmp_path / "kbroker-data").is_dir()

            @pytest.mark.kbroker(persist=False)
            def test_in_memory(self, kbroker, tmp_path):
                assert not (tmp_path / "kbroker-data").exists()
    """)
    result.assert_outcomes(passed=3)


def test_marker_with_disk_and_persist_is_rejected(run: Run) -> None:
    result = run("""
        import pytest

        pytestmark = pytest.mark.kbroker(disk=True)

        @pytest.mark.kbroker(persist=True)
        def test_it(kbroker):
            pass
    """)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*disk=True keeps data in memory, persist=True in a directory*"])


def test_request_log_omits_requests_of_kit(run: Run) -> None:
    text = """
        from kafka import KafkaProducer

        def test_it(kbroker):
            client = KafkaProducer(bootstrap_servers=kbroker.bootstrap_servers, client_id="app")
            client.send("orders", b"x").get(10)
            client.close()
            assert not kbroker.records("orders")
    """
    result = run(text, "--kbroker-log", "debug")
    lines = [line for line in result.outlines if line.startswith("log: ")]
    assert any("'app'" in line and "ProduceRequest" in line for line in lines)
    assert not any("ListOffsets" in line or "kbroker-kit" in line for line in lines)


def test_same_tests_run_against_external_kafka(run: Run) -> None:
    text = """
        import pytest

        @pytest.mark.kbroker(topics={"orders": 2})
        def test_it(kbroker):
            assert kbroker.records("orders") == []
            kbroker.produce("orders", "x", key="k")
            assert kbroker.wait_for("orders")[0].text == "x"

        @pytest.mark.kbroker(config={"num.partitions": "3"})
        def test_of_its_own(kbroker):
            pass

        def test_factory(kbroker_factory):
            pass

        def test_of_a_fault(kbroker):
            kbroker.fault("Produce")
    """
    with LocalBroker(topics={"orders": 1}) as external:
        external.produce("orders", "of an earlier run")
        result = run(text, "-rs", "--kbroker-bootstrap", external.bootstrap_servers)
        assert external.topics() == {}
    result.assert_outcomes(passed=1, skipped=3)
    found = [line for line in result.outlines if line.startswith("SKIPPED")]
    assert all("test_same_tests_run_against_external_kafka.py:" in line for line in found), found
    assert len(found) == 3


@pytest.mark.parametrize(
    ("address", "reason", "options"),
    [
        ("two hosts", "invalid address 'two hosts': expected HOST[:PORT], such as localhost", []),
        ("127.0.0.1:1", "127.0.0.1:1 refuses the connection", []),
        ("127.0.0.1:1", "127.0.0.1:1 refuses the connection", ["-n2"]),
    ],
    ids=["invalid", "nobody listens", "workers"],
)
def test_unreachable_bootstrap_ends_run(
    run: Run, address: str, reason: str, options: list[str]
) -> None:
    text = """
        import pytest

        @pytest.mark.parametrize("number", range(10))
        def test_one(kbroker, number):
            pass

        def test_two(kbroker_session):
            pass
    """
    result = run(text, *options, "--kbroker-bootstrap", address)
    output = result.stdout.str() + result.stderr.str()
    assert (
        output.count(
            f"--kbroker-bootstrap {address}: {reason}; pass the address of a running Kafka"
        )
        == 1
    )
    assert "Traceback" not in output
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_topics_of_test_are_deleted_from_external_kafka(run: Run) -> None:
    """Only topics that the fixture has created are deleted, not those of the program under test."""
    text = """
        def test_it(kbroker, kafka_topic):
            kbroker.create_topic("made")
            kbroker.produce("made-on-first-use", "x")
            kbroker.create_topic("deleted-by-the-test")
            kbroker.delete_topic("deleted-by-the-test")
            kbroker.produce("not-mine", "x")
            assert kafka_topic in kbroker.topics()
            assert "made-on-first-use" in kbroker.topics()

        def test_again(kbroker):
            assert kbroker.topics() == {"not-mine": 1}
            kbroker.create_topic("made")
            assert False, "also after a failed test"

        def test_once_more(kbroker):
            assert kbroker.topics() == {"not-mine": 1}
    """
    with LocalBroker(topics={"not-mine": 1}) as external:
        result = run(text, "--kbroker-bootstrap", external.bootstrap_servers)
        assert external.topics() == {"not-mine": 1}
    result.assert_outcomes(passed=2, failed=1)


def test_wait_until_idle_works_on_external_kafka(run: Run) -> None:
    """With the fixture and with KafkaTestCase; groups are deleted too."""
    text = """
        import os

        import pytest
        from confluent_kafka import Consumer, TopicPartition
        from kbroker.testing import KafkaTestCase

        def commit(kbroker):
            servers = {"bootstrap.servers": kbroker.bootstrap_servers, "group.id": "g"}
            client = Consumer(servers)
            client.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
            client.close()

        @pytest.mark.kbroker(topics=["orders"])
        def test_it(kbroker):
            kbroker.produce("orders", "x")
            commit(kbroker)
            kbroker.wait_for_lag("g", 0)
            kbroker.wait_until_idle()
            kbroker.expect_nothing("orders")
            assert kbroker._settle_seconds == 0.1

        class OrdersTest(KafkaTestCase):
            kbroker_settings = {"topics": {"orders": 1}}

            def test_it_too(self):
                assert self.kbroker.bootstrap_servers == os.environ["ELSEWHERE"]
                assert self.kbroker.group("g") is None
                self.kbroker.produce("orders", "x")
                commit(self.kbroker)
                self.kbroker.expect_nothing("orders")
                assert self.kbroker._settle_seconds == 0.1
    """
    with LocalBroker() as external, pytest.MonkeyPatch.context() as environment:
        environment.setenv("ELSEWHERE", external.bootstrap_servers)
        options = [
            "--kbroker-bootstrap",
            external.bootstrap_servers,
            "--kbroker-settle-time",
            "0.1",
        ]
        result = run(text, *options)
        assert external.group("g") is None
        assert external.topics() == {}
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize("options", [["--kbroker-shared"], ["--kbroker-bootstrap"]], ids=str)
def test_leftovers_of_earlier_test_are_not_unexpected(run: Run, options: list[str]) -> None:
    text = """
        from kbroker.testing import ExternalKafka

        def test_one(kbroker_session):
            other = ExternalKafka(kbroker_session.bootstrap_servers)
            other.produce("orders", "x")
            other.close()

        def test_two(kbroker_session):
            assert len(kbroker_session.records("orders")) == 1
            kbroker_session.expect_nothing("orders")
    """
    with LocalBroker() as external:
        if "--kbroker-bootstrap" in options:
            options = [*options, external.bootstrap_servers]
        result = run(text, *options, "--kbroker-settle-time", "0.1")
    result.assert_outcomes(passed=2)


def test_bootstrap_address_is_read_from_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalBroker() as external:
        monkeypatch.setenv("KBROKER_TEST_BOOTSTRAP", external.bootstrap_servers)
        result = run(f"""
            def test_it(kbroker, kbroker_session):
                assert kbroker.bootstrap_servers == "{external.bootstrap_servers}"
                assert kbroker_session is kbroker
        """)
    result.assert_outcomes(passed=1)


def test_plugin_imports_neither_trio_nor_server(pytester: pytest.Pytester) -> None:
    program = (
        "import sys, kbroker.testing.plugin;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'trio', 'click', 'lz4'}),"
        "sorted({name for name in sys.modules if name.startswith('kbroker')} - {'kbroker._version'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [
        "[]",
        "['kbroker',",
        "'kbroker.testing',",
        "'kbroker.testing.plugin']",
    ]


def test_plugin_is_loaded_by_entry_point() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    plugins = project["project"]["entry-points"]["pytest11"]
    assert plugins == {"kbroker": "kbroker.testing.plugin"}


ROOT = Path(__file__).parents[2]
KIT_PAGES = [
    "how-to/test-your-app",
    "how-to/faults-in-tests",
    "reference/test-kit",
    "reference/control-protocol",
]
EXAMPLES = [
    block
    for page in (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in KIT_PAGES))
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    if "def test_" in block
]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_of_documentation_pass(run: Run, number: int) -> None:
    example = EXAMPLES[number]
    result = run(example)
    result.assert_outcomes(passed=example.count("def test_"))


def test_report_of_broker_that_cannot_be_saved_does_not_end_the_run(
    run: Run, tmp_path: Path
) -> None:
    text = """
        import pytest
        from kbroker.testing import LocalBroker

        @pytest.mark.kbroker(nodes=2)
        def test_nodes(kbroker):
            assert 0

        def test_report(kbroker, monkeypatch):
            kbroker.report = lambda: kbroker.missing
            assert 0
    """
    result = run(text, "--kbroker-dump-dir", str(tmp_path / "kept"))
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*not saved: *several nodes*", "*no report: AttributeError*"])


def test_all_brokers_of_a_factory_are_closed(run: Run) -> None:
    result = run("""
        from kbroker.testing import LocalBroker

        closed = []
        close = LocalBroker.close

        def test_one(kbroker_factory):
            def close_and_fail(broker):
                closed.append(broker)
                close(broker)
                raise OSError("not closed")
            LocalBroker.close = close_and_fail
            kbroker_factory(), kbroker_factory()

        def test_two():
            LocalBroker.close = close
            assert len(closed) == 2
    """)
    result.assert_outcomes(passed=2, errors=1)
