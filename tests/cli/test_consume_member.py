"""`kbroker topic consume --group` as a separate process, with other members of its group."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import pytest
import trio

from kbroker.cli.consume_member import MemberReader
from kbroker.client.cluster import ClusterClient
from kbroker.client.member import Member
from kbroker.client.offset_spec import START
from kbroker.client.topics import Partition
from kbroker.testing import LocalBroker

SECONDS = 60
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"t": 2}) as broker:
        yield broker


@pytest.fixture
def start(broker: LocalBroker) -> Iterator[Start]:
    """Return a function that starts a member of group g that reads topic t."""
    started: list[subprocess.Popen[str]] = []

    def run(*options: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "kbroker",
            "topic",
            "consume",
            "t",
            "-g",
            "g",
            "-f",
            r"%v\n",
        ]
        process = subprocess.Popen(
            [*command, "-b", broker.bootstrap_servers, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def read(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_member_commits_and_leaves_group_on_signal(
    number: signal.Signals, broker: LocalBroker, start: Start
) -> None:
    for value in "abc":
        broker.produce("t", value, partition=0)
    process = start("--from-beginning")
    assert read(process, 3) == ["a", "b", "c"]
    (member,) = broker.wait_for_group("g", members=1, timeout=SECONDS).members
    assert member.partitions == [("t", 0), ("t", 1)]
    process.send_signal(number)
    assert process.communicate(timeout=SECONDS) == ("", "")
    assert process.returncode == 128 + number
    group = broker.group("g")
    assert group is not None
    assert group.state == "Empty"
    assert broker.committed("g") == {("t", 0): 3, ("t", 1): 0}


@pytest.mark.slow
def test_two_members_print_every_record_once(broker: LocalBroker, start: Start) -> None:
    broker.produce("t", "first", partition=0)
    one = start("--from-beginning")
    assert read(one, 1) == ["first"]
    other = start("--from-beginning")
    broker.wait_for_group("g", members=2, timeout=SECONDS)
    for partition in (0, 1):
        broker.produce("t", f"of {partition}", partition=partition)
    assert sorted(read(one, 1) + read(other, 1)) == ["of 0", "of 1"]
    one.send_signal(signal.SIGTERM)
    assert one.wait(SECONDS) == 128 + signal.SIGTERM
    for partition in (0, 1):
        broker.produce("t", f"more of {partition}", partition=partition)
    assert sorted(read(other, 2)) == ["more of 0", "more of 1"]
    other.send_signal(signal.SIGTERM)
    assert one.communicate() == ("", "")
    output, problems = other.communicate(timeout=SECONDS)
    assert output == ""
    assert "--from-beginning does not apply there" in problems
    assert broker.committed("g") == {("t", 0): 3, ("t", 1): 2}


@pytest.mark.slow
def test_offset_option_applies_without_committed_offset(broker: LocalBroker, start: Start) -> None:
    for partition in (0, 1):
        broker.produce("t", f"of {partition}", partition=partition)
    assert start("-o", "start", "-n", "2").communicate(timeout=SECONDS)[0].count("of") == 2
    broker.produce("t", "new", partition=1)
    done = start("-o", ":end").communicate(timeout=SECONDS)
    assert done == ("new\n", "")
    assert broker.committed("g") == {("t", 0): 1, ("t", 1): 2}


@pytest.mark.slow
def test_start_offset_is_committed_before_first_record(broker: LocalBroker, start: Start) -> None:
    """The next member starts at the committed start offset, not at a later log end offset."""
    process = start("--timeout", "60s")
    broker.wait_for_group("g", members=1, timeout=SECONDS)
    broker.wait_for_commit("g", "t", 0, 0, timeout=SECONDS)
    process.send_signal(signal.SIGTERM)
    process.wait(SECONDS)
    broker.produce("t", "meanwhile", partition=0)
    assert start("-n", "1").communicate(timeout=SECONDS)[0] == "meanwhile\n"


@pytest.mark.parametrize(("option", "spec"), [("--from-beginning", "start"), ("-ostart", "OFFSET")])
def test_start_option_with_committed_offsets_names_group_seek(
    broker: LocalBroker, start: Start, option: str, spec: str
) -> None:
    broker.produce("t", "old", partition=0)
    assert start("--from-beginning", "-n", "1").communicate(timeout=SECONDS) == ("old\n", "")
    broker.produce("t", "new", partition=0)
    output, problems = start(option, "-n", "1").communicate(timeout=SECONDS)
    assert output == "new\n"
    assert "group 'g' has committed offsets in 2 partitions" in problems
    assert f"`kbroker group seek g --to {spec}`" in problems


@pytest.mark.slow
def test_expired_member_rejoins_and_continues(broker: LocalBroker, start: Start) -> None:
    broker.produce("t", "first", partition=0)
    process = start("--from-beginning")
    assert read(process, 1) == ["first"]
    broker.wait_for_commit("g", "t", 0, 1, timeout=SECONDS)
    (member,) = broker.wait_for_group("g", members=1, timeout=SECONDS).members
    broker.expire_member("g", member.id)
    broker.wait_for_group("g", members=1, timeout=SECONDS)
    broker.produce("t", "second", partition=0)
    assert read(process, 1) == ["second"]


def test_group_and_partition_options_exclude_each_other(start: Start) -> None:
    process = start("-p", "0")
    assert "--group and --partition exclude each other" in process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 2


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_positions_of_interrupted_commit_are_committed_at_end(is_cancelled: bool) -> None:
    """A signal may arrive, or the coordinator disconnect, during one of the regular commits."""
    commits: list[Mapping[Partition, int]] = []

    class InterruptedMember(Member):
        async def commit(self, offsets: Mapping[Partition, int]) -> bool:
            commits.append(dict(offsets))
            if len(commits) == 1:
                if not is_cancelled:
                    raise OSError("the coordinator disconnected")
                await trio.sleep_forever()
            return True

    cluster = ClusterClient([], "x", direct=False)
    reader = MemberReader(
        cluster,
        "g",
        InterruptedMember(cluster, "g", ["t"]),
        lambda found: found,
        lambda: False,
        START,
        None,
        committed=False,
        control=False,
    )
    reader._add_positions({("t", 0): 5})
    with trio.CancelScope() as scope, suppress(OSError):
        scope.cancel()
        await reader._commit()
    await reader._commit()
    assert commits == [{("t", 0): 5}] * 2
