"""Every kind of fault of the test kit: unmodified clients handle or report it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.clients import COORDINATOR_MOVES, ClientError, ClientProcess, Library, eventually
from harness.tools import ToolOutput, Tools

from kbroker.testing import Fault, LocalBroker

pytestmark = pytest.mark.needs("idempotent")

OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_PRODUCER_EPOCH = 1, 2, 10, 47
WAIT_MS = 300
# Long, so that a slow machine does not expire members.
SESSION_MS = 30_000
# Values that fit in one request.
VALUES = [str(number) for number in range(40)]
# Values that are so large that each needs its own request.
LARGE = [str(number) * 600_000 for number in range(8)]
ONCE = {"idempotent": True, "linger_ms": 0}
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalBroker]:
    """Start one broker with fault injection for all tests of this file."""
    with LocalBroker(config={"group.min.session.timeout.ms": "1000"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def processes(
    shared: LocalBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Library], ClientProcess]]:
    directory = tmp_path_factory.mktemp("faults")
    running: dict[str, ClientProcess] = {}

    def get(library: Library) -> ClientProcess:
        if library.name not in running:
            log: Path = directory / f"{library.name}.err"
            running[library.name] = ClientProcess(library, shared.bootstrap_servers, log)
        return running[library.name]

    yield get
    for one in running.values():
        one.close()


@pytest.fixture
def worker(client: Library, processes: Callable[[Library], ClientProcess]) -> ClientProcess:
    return processes(client)


@pytest.fixture
def broker(shared: LocalBroker) -> Iterator[LocalBroker]:
    """Return the broker without faults. Afterwards every armed fault must have been hit."""
    yield shared
    shared.cap_versions(None)
    try:
        shared.check_faults()
    finally:
        shared.disarm_faults()


@pytest.fixture
def topic(broker: LocalBroker, unique: Unique) -> str:
    name = unique("topic")
    broker.create_topic(name)
    return name


def records_of(values: list[str]) -> list[dict[str, Any]]:
    return [{"value": value, "partition": 0} for value in values]


def send(
    worker: ClientProcess, topic: str, values: list[str], **options: Any
) -> list[dict[str, Any]]:
    """Send records with an idempotent producer and return the response to each."""
    records = records_of(values)
    answers: list[dict[str, Any]] = worker(
        "produce", topic=topic, records=records, **ONCE, **options
    )
    return answers


def held(broker: LocalBroker, topic: str) -> list[str]:
    return [record.text for record in broker.records(topic)]


# -- faults of requests and responses


@pytest.mark.parametrize(
    ("effect", "at"),
    [
        ("disconnect", "before"),
        ("disconnect", "after"),
        ("truncate_response", "after"),
        ("duplicate_response", "after"),
        ("delay", "before"),
        ("blackhole", "after"),
    ],
)
def test_producer_writes_once_despite_lost_response(
    broker: LocalBroker,
    worker: ClientProcess,
    topic: str,
    effect: str,
    at: str,
) -> None:
    """The client retries after each effect, and no record is written twice."""
    fault = broker.fault("Produce", topic=topic, at=at)
    getattr(fault, effect)(*([WAIT_MS] if effect == "delay" else []))
    timeout_ms = 1000 if effect == "blackhole" else 15_000
    answers = send(worker, topic, VALUES, request_timeout_ms=timeout_ms)
    assert answers == [{"partition": 0, "offset": number} for number in range(len(VALUES))]
    assert held(broker, topic) == VALUES
    assert fault.hits == 1


@pytest.mark.parametrize(
    ("error", "at"),
    [
        ("NOT_LEADER_OR_FOLLOWER", "before"),
        ("REQUEST_TIMED_OUT", "after"),
    ],
)
def test_producer_retries_after_transient_error(
    broker: LocalBroker, worker: ClientProcess, topic: str, error: str, at: str
) -> None:
    fault = broker.fault("Produce", error=error, topic=topic, at=at).times(2)
    answers = send(worker, topic, ["x"])
    assert answers == [{"partition": 0, "offset": 0}]
    assert held(broker, topic) == ["x"]
    assert fault.hits == 2


def test_producer_reports_permanent_error(
    broker: LocalBroker, worker: ClientProcess, topic: str
) -> None:
    fault = broker.fault("Produce", error=MESSAGE_TOO_LARGE, topic=topic).always()
    (answer,) = send(worker, topic, ["x"])
    assert answer["error"]["code"] == MESSAGE_TOO_LARGE
    assert held(broker, topic) == []
    assert fault.hits >= 1


# Clients that pause when they are throttled (KIP-219).
PAUSES_WHEN_THROTTLED = {"kafka-python-3"}


def test_throttled_producer_pauses(
    broker: LocalBroker, client: Library, worker: ClientProcess, topic: str
) -> None:
    times: list[float] = []
    broker.on("Produce", topic=topic)(lambda request, call: times.append(time.monotonic()))
    fault = broker.fault("Produce", topic=topic).throttle(WAIT_MS)
    answers = send(worker, topic, LARGE)
    assert fault.hits == 1
    assert [answer["offset"] for answer in answers] == list(range(len(LARGE)))
    assert held(broker, topic) == LARGE
    if client.name in PAUSES_WHEN_THROTTLED:  # requests already in flight are not delayed
        assert times[-1] - times[0] >= 0.8 * WAIT_MS / 1000


# True for clients that retry after CORRUPT_MESSAGE, as Java's client does.
RETRIES_CORRUPT_MESSAGE = {"kafka-python-3": False, "confluent-kafka": True, "aiokafka": False}


def test_corrupt_batch_in_produce_request_is_rejected(
    broker: LocalBroker, client: Library, worker: ClientProcess, topic: str
) -> None:
    fault = broker.fault("Produce", topic=topic).corrupt_batch(bit=7)
    (answer,) = send(worker, topic, ["x"])
    assert fault.hits == 1
    if RETRIES_CORRUPT_MESSAGE[client.name]:
        assert answer == {"partition": 0, "offset": 0}
        assert held(broker, topic) == ["x"]
    else:
        assert answer["error"]["code"] == CORRUPT_MESSAGE
        assert held(broker, topic) == []


CORRUPT_BATCH_ERRORS = {
    "kafka-python-3": CORRUPT_MESSAGE,
    "confluent-kafka": None,
    "aiokafka": CORRUPT_MESSAGE,
}


def test_corrupt_batch_in_fetch_response_is_detected(
    broker: LocalBroker, client: Library, worker: ClientProcess, topic: str
) -> None:
    broker.produce(topic, "x")
    fault = broker.fault("Fetch", topic=topic).corrupt_batch()
    if CORRUPT_BATCH_ERRORS[client.name] is None:
        rows = worker("read", topic=topic, count=1)
        assert [row["value"] for row in rows] == ["x"]
    else:
        with pytest.raises(ClientError) as refused:
            worker("read", topic=topic, count=1)
        assert refused.value.code == CORRUPT_BATCH_ERRORS[client.name]
    assert fault.hits == 1


@pytest.mark.parametrize(
    "effect", ["disconnect", "truncate_response", "duplicate_response", "error"]
)
def test_consumer_reads_each_record_once_despite_faults(
    broker: LocalBroker, worker: ClientProcess, topic: str, effect: str
) -> None:
    for value in VALUES:
        broker.produce(topic, value)
    error = "NOT_LEADER_OR_FOLLOWER" if effect == "error" else None
    fault = broker.fault("Fetch", topic=topic, error=error)
    if effect != "error":
        getattr(fault, effect)()
    rows = worker("read", topic=topic, count=len(VALUES))
    assert [row["value"] for row in rows] == VALUES
    assert fault.hits == 1


# -- schedules, hooks, versions


def test_producer_survives_scheduled_faults(
    broker: LocalBroker, worker: ClientProcess, topic: str
) -> None:
    """Several schedules on the same producer."""
    error = "NOT_LEADER_OR_FOLLOWER"
    third = broker.fault("Produce", error=error, topic=topic).on_call(3)
    broker.fault("Produce", error=error, topic=topic).with_probability(0.2, seed=3)
    broker.fault("Produce", error="NOT_COORDINATOR", topic="another").always().optional()
    answers = send(worker, topic, LARGE)
    assert [answer["offset"] for answer in answers] == list(range(len(LARGE)))
    assert held(broker, topic) == LARGE
    assert third.hits == 1


def test_hook_is_called_for_all_requests_of_client(
    broker: LocalBroker, worker: ClientProcess, topic: str
) -> None:
    seen: dict[str, int] = defaultdict(int)

    @broker.on()
    def count_request(request: Any, call: Any) -> None:
        seen[call.api.api_name] += 1

    send(worker, topic, ["x"])
    assert {"ApiVersions", "Metadata", "InitProducerId", "Produce"} <= seen.keys()


@pytest.mark.parametrize("release", ["4.0", "2.8", "0.11"])
def test_client_works_with_older_broker_versions(
    broker: LocalBroker, worker: ClientProcess, topic: str, release: str
) -> None:
    broker.cap_versions(release)
    calls: list[Any] = []
    broker.on(["Produce", "Fetch"])(lambda request, call: calls.append(call))
    assert [answer["offset"] for answer in send(worker, topic, ["x", "y"])] == [0, 1]
    assert [row["value"] for row in worker("read", topic=topic, count=2)] == ["x", "y"]
    newest = {"4.0": (12, 17), "2.8": (9, 12), "0.11": (3, 5)}[release]
    for api, limit in zip(("Produce", "Fetch"), newest, strict=True):
        assert max(one.version for one in calls if one.api.api_name == api) <= limit


# -- faults of the cluster


def joined(worker: ClientProcess, topic: str, group: str, **options: Any) -> None:
    worker("join", member=group, topics=[topic], group=group, session_ms=SESSION_MS, **options)
    wait_for_partitions(worker, group, [[topic, 0]])


def wait_for_partitions(worker: ClientProcess, member: str, wanted: list[list[Any]]) -> None:
    eventually(
        lambda: worker("state", member=member)["assigned"],
        lambda seen: seen == wanted,
        "partitions",
    )


def wait_for_records(worker: ClientProcess, member: str, count: int) -> list[str]:
    eventually(
        lambda: worker("state", member=member)["count"], lambda seen: seen >= count, "records"
    )
    return [row["value"] for row in worker("rows", member=member)]


def test_expired_member_rejoins(
    broker: LocalBroker, worker: ClientProcess, topic: str, unique: Unique
) -> None:
    group = unique("group")
    joined(worker, topic, group)
    (before,) = broker.wait_for_group(group, members=1).members
    assert broker.expire_member(group, before.id) == [before.id]
    after = eventually(
        lambda: broker.group(group),
        lambda seen: (
            seen is not None and [each.id for each in seen.members] not in ([], [before.id])
        ),
        "a member with a new id",
    )
    assert after.members[0].id != before.id
    wait_for_partitions(worker, group, [[topic, 0]])
    broker.produce(topic, "x")
    assert wait_for_records(worker, group, 1) == ["x"]
    worker("leave", member=group)


# librdkafka disconnects from a coordinator that moved. After some failed retries the application
# gets a transport error without a Kafka error code.
TRANSPORT_ERRORS = frozenset({None})


def test_member_continues_after_coordinator_moves(
    broker: LocalBroker, worker: ClientProcess, topic: str, unique: Unique
) -> None:
    group = unique("group")
    # librdkafka requests the coordinator only after its fetch: see FINDINGS.md.
    joined(worker, topic, group, fetch_wait_ms=20)
    (before,) = broker.wait_for_group(group, members=1).members
    broker.produce(topic, "x")
    assert wait_for_records(worker, group, 1) == ["x"]
    broker.move_coordinator(group)
    eventually(
        lambda: worker("commit", member=group),
        lambda seen: True,
        "a commit",
        not_yet=COORDINATOR_MOVES | TRANSPORT_ERRORS,
    )
    assert broker.committed(group) == {(topic, 0): 1}
    (after,) = broker.wait_for_group(group, members=1).members
    assert after.id == before.id, "the member changed after the coordinator moved"
    worker("leave", member=group)


def test_clients_continue_after_leader_moves(
    broker: LocalBroker, worker: ClientProcess, topic: str, unique: Unique
) -> None:
    group = unique("group")
    joined(worker, topic, group)
    broker.produce(topic, "x")
    assert wait_for_records(worker, group, 1) == ["x"]
    broker.move_leader(topic)
    assert send(worker, topic, ["y"]) == [{"partition": 0, "offset": 1}]
    assert wait_for_records(worker, group, 2) == ["x", "y"]
    worker("leave", member=group)


def test_out_of_range_position_is_reset_or_reported(
    broker: LocalBroker, client: Library, worker: ClientProcess, topic: str, unique: Unique
) -> None:
    """A client with a reset policy continues. With reset "none" it gets an error."""
    group = unique("group")
    joined(worker, topic, group, reset="earliest")
    broker.produce(topic, "x")
    assert wait_for_records(worker, group, 1) == ["x"]
    start = broker.offset_out_of_range(topic)
    assert broker.produce(topic, "y").offset == start
    assert wait_for_records(worker, group, 2) == ["x", "y"]
    worker("leave", member=group)
    with pytest.raises(ClientError) as refused:
        worker("read", topic=topic, start={"0": 1}, reset="none")
    if client.name == "confluent-kafka":  # librdkafka uses its own error code
        assert "Offset out of range" in refused.value.message
    else:
        assert refused.value.code == OFFSET_OUT_OF_RANGE


# True for clients that drop their requests in flight when they are fenced and continue with a new
# producer id.
CONTINUES_AFTER_FENCING = {"kafka-python-3": True, "confluent-kafka": True, "aiokafka": False}


def test_fenced_producer_reports_error(
    broker: LocalBroker, client: Library, worker: ClientProcess, topic: str
) -> None:
    async def fence(request: Any, call: Any) -> None:
        await broker.running.fence_producer()

    broker.fault("Produce", topic=topic).hook(fence).on_call(2)
    answers = send(worker, topic, LARGE)
    assert "offset" in answers[0]
    refused = answers[1]["error"]
    assert refused["code"] == INVALID_PRODUCER_EPOCH or refused["type"] == "ProducerFenced"
    assert ("offset" in answers[-1]) is CONTINUES_AFTER_FENCING[client.name]
    written = [value for value, answer in zip(LARGE, answers, strict=True) if "offset" in answer]
    assert held(broker, topic) == written


def test_producer_continues_after_broker_restart(
    broker: LocalBroker, worker: ClientProcess, topic: str
) -> None:
    first = broker.fault("Produce", topic=topic, at="after").delay(WAIT_MS)
    worker.send("produce", topic=topic, records=records_of(VALUES), **ONCE)
    first.wait(timeout=10)
    broker.stop()
    broker.start()
    answers = worker.receive("produce")
    assert all("offset" in answer for answer in answers), answers
    assert held(broker, topic) == VALUES


# Maximum requests in flight per partition of an idempotent producer.
IN_FLIGHT = {"kafka-python-3": 1, "confluent-kafka": 5, "aiokafka": 1}


@pytest.mark.parametrize("effect", ["disconnect", "blackhole"])
def test_unacknowledged_batches_are_not_duplicated_after_restart(
    client: Library, spawn: Any, topic: str, tmp_path: Path, effect: str
) -> None:
    """After the restart, the broker recognizes the retries of batches that it already wrote.

    If the connection ends with the first response, the broker does not read later requests.
    """
    written = 1 if effect == "disconnect" else IN_FLIGHT[client.name]
    with LocalBroker(topics=[topic], data_dir=str(tmp_path / "data")) as broker:
        worker = spawn(client, broker.bootstrap_servers)
        fault = broker.fault("Produce", topic=topic, at="after")
        getattr(fault, effect)().always()
        worker.send("produce", topic=topic, records=records_of(LARGE), **ONCE)
        broker.wait_for(topic, count=written, timeout=30)
        broker.stop()
        fault.disarm()
        broker.start()
        answers = worker.receive("produce")
        assert answers == [{"partition": 0, "offset": number} for number in range(len(LARGE))]
        assert held(broker, topic) == LARGE


# -- Java's client, in Kafka's console tools


def armed(broker: LocalBroker, effect: str, api: str, topic: str) -> Fault[None]:
    """Arm a fault on a response: an effect, or an error by its name."""
    if effect.isupper():
        return broker.fault(api, topic=topic, error=effect)
    fault = broker.fault(api, topic=topic, at="before" if effect == "delay" else "after")
    settings = [WAIT_MS] if effect in ("delay", "throttle") else []
    armed: Fault[None] = getattr(fault, effect)(*settings)
    return armed


@pytest.mark.parametrize(
    "effect",
    [
        "disconnect",
        "truncate_response",
        "duplicate_response",
        "delay",
        "throttle",
        "blackhole",
        "corrupt_batch",
        "NOT_LEADER_OR_FOLLOWER",
    ],
)
def test_java_producer_writes_once_despite_lost_response(
    broker: LocalBroker, tools: Tools, topic: str, effect: str
) -> None:
    fault = armed(broker, effect, "Produce", topic)
    timeout_ms = "1000" if effect == "blackhole" else "15000"
    completed = tools.run(
        "kafka-console-producer",
        *("--bootstrap-server", broker.bootstrap_servers, "--topic", topic),
        *("--request-required-acks", "all", "--request-timeout-ms", timeout_ms),
        stdin="\n".join(VALUES),
    )
    assert completed.status == 0, completed
    assert held(broker, topic) == VALUES
    assert fault.hits == 1


def read_by_java(broker: LocalBroker, tools: Tools, topic: str) -> ToolOutput:
    return tools.run(
        "kafka-console-consumer",
        *("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--from-beginning"),
        *("--max-messages", str(len(VALUES)), "--timeout-ms", "30000"),
    )


@pytest.mark.parametrize("effect", ["disconnect", "truncate_response", "KAFKA_STORAGE_ERROR"])
def test_java_consumer_reads_each_record_once_despite_faults(
    broker: LocalBroker, tools: Tools, topic: str, effect: str
) -> None:
    """duplicate_response is omitted: Java's consumer raises an exception and the tool hangs."""
    for value in VALUES:
        broker.produce(topic, value)
    fault = armed(broker, effect, "Fetch", topic)
    assert read_by_java(broker, tools, topic).stdout.split() == VALUES
    assert fault.hits == 1


def test_java_consumer_reports_corrupt_batch(broker: LocalBroker, tools: Tools, topic: str) -> None:
    broker.produce(topic, "x")
    fault = armed(broker, "corrupt_batch", "Fetch", topic)
    completed = read_by_java(broker, tools, topic)
    assert completed.stdout == ""
    assert "Received exception when fetching the next record" in completed.stderr
    assert fault.hits == 1
