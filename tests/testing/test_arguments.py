"""Forms of test arguments, and errors for invalid ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.config import ConfigError
from kbroker.testing import BrokerThread, LocalBroker, open_test_broker
from kbroker.testing.arguments import broker_properties, parse_group_state, partitions_of, topics_of
from kbroker.testing.expectation import seconds


@pytest.fixture
def broker(thread: BrokerThread) -> Iterator[LocalBroker]:
    with LocalBroker(topics={"t": 1}, disk=True, thread=thread) as broker:
        yield broker


# -- valid arguments


def test_config_accepts_strings_numbers_and_booleans(thread: BrokerThread) -> None:
    config = {"num.partitions": 3, "auto.create.topics.enable": True, "log.retention.hours": "24"}
    with LocalBroker(config=config, thread=thread) as broker:
        broker.create_topic("t", configs={"retention.ms": 1000, "preallocate": False})
        broker.produce("made", "x")
        assert broker.topics() == {"t": 1, "made": 3}


def test_topics_accept_names_only(thread: BrokerThread) -> None:
    with LocalBroker(topics=["t", "u"], thread=thread) as broker:
        assert broker.topics() == {"t": 1, "u": 1}


async def test_open_test_broker_accepts_same_arguments() -> None:
    async with open_test_broker(topics=["t"], config={"num.partitions": 2}) as broker:
        await broker.produce("made", "x")
        assert await broker.topics() == {"t": 1, "made": 2}
    with pytest.raises(ValueError, match=r"did you mean log\.retention\.hours"):
        async with open_test_broker(config={"log.retention.hurs": 1}):
            pass


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("listeners", "bootstrap_servers"),
        ("advertised.listeners", "bootstrap_servers"),
        ("log.dir", "data_dir="),
        ("log.dirs", "persist=True"),
        ("http.port", "kbroker serve"),
        ("registry.port", "schema_registry=True"),
    ],
)
def test_property_that_test_kit_sets_is_rejected(
    thread: BrokerThread, name: str, replacement: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^config: {name} has no effect; .*{replacement}"):
        LocalBroker(config={name: "1"}, thread=thread)


def test_open_test_broker_in_asyncio_suggests_local_broker() -> None:
    async def story() -> None:
        async with open_test_broker():
            pass

    with pytest.raises(RuntimeError, match=r"in asyncio, use LocalBroker"):
        asyncio.run(story())


async def test_call_of_local_broker_in_trio_suggests_thread(thread: BrokerThread) -> None:
    broker = await trio.to_thread.run_sync(lambda: LocalBroker(thread=thread))
    with pytest.raises(RuntimeError, match=r"call it in a thread \(trio\.to_thread\.run_sync\)"):
        broker.topics()
    assert await trio.to_thread.run_sync(broker.topics) == {}
    await trio.to_thread.run_sync(broker.close)


@pytest.mark.parametrize(
    "headers", [{"a": "b", "n": None}, [("a", b"b"), ("n", None)], [["a", "b"], ["n", None]]]
)
def test_headers_accept_strings_and_bytes(broker: LocalBroker, headers: Any) -> None:
    record = broker.produce("t", "x", headers=headers)
    assert record.headers == (("a", b"b"), ("n", None))
    assert broker.expect("t").header("a", "b").within("1 s") == record


@pytest.mark.parametrize(
    "given", [[("t", 1), ("t", 0)], [["t", 0], ["t", 1]], {"t": [1, 0]}, {"t": {0, 1}}]
)
def test_partitions_accept_pairs_or_mapping(given: Any) -> None:
    assert partitions_of(given) == [("t", 0), ("t", 1)]


def test_group_state_ignores_case() -> None:
    assert [parse_group_state(each) for each in ("stable", "EMPTY", None)] == [
        "Stable",
        "Empty",
        None,
    ]


@pytest.mark.parametrize(
    ("text", "expected"), [("2 s", 2), ("500 ms", 0.5), (" 1m ", 60), ("2s", 2), ("1h", 3600)]
)
def test_time_accepts_space_before_unit(text: str, expected: float) -> None:
    assert seconds(text) == expected


# -- invalid arguments


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: topics_of("orders"), "invalid topics 'orders': pass .* or a list of names"),
        (lambda: topics_of({"orders": "3"}), r"topics\['orders'\] must be a number, not '3'"),
        (lambda: topics_of({"orders": 0}), r"topics\['orders'\] must be at least 1, not 0"),
        (
            lambda: partitions_of(["t-0"]),
            r"invalid partitions .*.t-0.*: pass \[\(\"orders\", 0\), ...\] or",
        ),
        (lambda: partitions_of({"t": "0"}), "invalid partitions"),
        (lambda: parse_group_state("stabel"), "invalid state .stabel. .valid: Empty, .*Stable"),
        (lambda: broker_properties({"log.retention.hurs": 1}), r"mean log\.retention\.hours"),
        (lambda: broker_properties({"num.partitions": {}}), "num.partitions: expected a string"),
    ],
)
def test_invalid_argument_form_is_rejected(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda b: b.power_cut(mode="dropp"), "invalid mode .dropp. .valid: drop, torn, "),
    (lambda b: b.crash_at("produce.appended", "dropp"), "invalid mode .dropp. .valid: drop"),
    (lambda b: b.disk.full("nope", 0), "there is no partition nope-0"),
    (lambda b: b.disk.full("t", 9), "there is no partition t-9"),
    (lambda b: b.disk.full(free=-1), "free must be at least 0"),
    (lambda b: b.disk.slow(-1), "milliseconds must be at least 0, not -1"),
    (lambda b: b.move_coordinator("nope"), r"there is no group .nope. \(valid: none\)"),
    (lambda b: b.cap_versions({"Fetch": 99}), "Fetch has no version 99 .valid: 0 to 18, or None"),
    (lambda b: b.cap_versions({"Fetch": -1}), "Fetch has no version -1 .valid: 0 to 18, or None"),
    (lambda b: b.fault("Fetch").times(0), "times must be at least 1, not 0"),
    (lambda b: b.fault("Fetch").times("2"), "times must be a number, not '2'"),
    (lambda b: b.fault("Fetch").on_call(0), "on_call must be at least 1, not 0"),
    (lambda b: b.fault("Fetch").with_probability(2), "probability must be from 0 to 1, not 2"),
    (lambda b: b.fault("Fetch").delay(-1), "milliseconds must be at least 0, not -1"),
    (lambda b: b.fault("Fetch").throttle(-1), "milliseconds must be at least 0, not -1"),
    (lambda b: b.fault("Fetch").corrupt_batch(bit=10**9), "bit must be from 0 to 838860799"),
    (lambda b: b.fault("Fetch").corrupt_batch(bit=-1), "bit must be from 0 to"),
    (lambda b: b.fault("Fetch", error="NONE"), "NONE is not an error"),
    (lambda b: b.fault("Fetch", error=0), "NONE is not an error"),
    (
        lambda b: b.fault("Fetch", versions=99),
        "no request has versions 99 to 99 .valid: Fetch 0 to 18",
    ),
    (lambda b: b.fault(versions=99), "no request has versions 99 to 99"),
    (lambda b: b.clock.advance(), r"advance\(hours=25\)"),
    (lambda b: b.clock.coordinator.advance(), r"advance\(hours=25\)"),
    (lambda b: b.clock.advance(hours="x"), "hours must be a number, not 'x'"),
    (
        lambda b: b.produce("t", "x", partition=9),
        "t has no partition 9, it has 1; use partition=None",
    ),
    (lambda b: b.produce("t", "x", partition=-2), "partition must be at least 0"),
    (lambda b: b.produce("t", "x", headers=["ab"]), r"invalid headers \['ab'\]"),
    (lambda b: b.wait_for_group("g", state="stabel"), "invalid state"),
    (lambda b: b.wait_for_assignment("g", ["t-0"]), "invalid partitions"),
]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_invalid_argument_is_rejected_at_once(broker: LocalBroker, number: int) -> None:
    """The call has no effect: no fault is armed, and no power is cut."""
    call, message = REFUSED[number]
    with pytest.raises(ValueError, match=message):
        call(broker)
    broker.check_faults()
    assert broker.produce("t", "x").offset == 0


def test_limit_values_are_accepted(broker: LocalBroker) -> None:
    broker.disk.full("t", 0)
    broker.disk.free_space()
    broker.restart()
    with pytest.raises(ValueError, match="there is no partition t-1"):
        broker.disk.full("t", 1)
    broker.cap_versions({"Fetch": 18})
    fault = broker.fault("Fetch", versions=range(17, 30)).with_probability(1).on_call(1).times(1)
    fault.delay(0).disarm()


def test_disk_with_data_dir_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="disk=True keeps data in memory"):
        LocalBroker(disk=True, data_dir=str(tmp_path))
    assert not list(tmp_path.iterdir())
