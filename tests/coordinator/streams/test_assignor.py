"""Task assignor of streams groups: stickiness, standbys and balance."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kbroker.coordinator.common.target_assignments import run_to_end
from kbroker.coordinator.streams.assignor import (
    WORK_AT_ONCE,
    AssignmentMemberSpec,
    TaskTargets,
    assign_tasks,
)
from kbroker.coordinator.streams.tasks import NO_TARGET, TasksTuple, freeze_tasks
from kbroker.coordinator.streams.topics import ConfiguredInternalTopic, ConfiguredSubtopology

LOG = (ConfiguredInternalTopic("log", 1, 0, ()),)


def part(tasks: int, *, stateful: bool = False) -> ConfiguredSubtopology:
    return ConfiguredSubtopology(tasks, frozenset("t"), ("t",), (), (), LOG if stateful else ())


def share(
    parts: dict[str, ConfiguredSubtopology],
    members: dict[str, str],
    had: TaskTargets | None = None,
    standbys: int = 0,
) -> TaskTargets:
    """Return the targets of members, which are given with their processes."""
    known = {
        name: AssignmentMemberSpec(process, (had or {}).get(name, NO_TARGET))
        for name, process in members.items()
    }
    return run_to_end(assign_tasks(known, parts, standbys))


def active(targets: TaskTargets) -> dict[str, int]:
    return {name: sum(map(len, lists.active.values())) for name, lists in targets.items()}


def places(targets: TaskTargets) -> Counter[tuple[str, int]]:
    """Return how often each task is active."""
    return Counter(
        (subtopology, partition)
        for lists in targets.values()
        for subtopology, partitions in lists.active.items()
        for partition in partitions
    )


def test_active_tasks_are_balanced() -> None:
    found = share({"0": part(6), "1": part(2)}, {"a": "p", "b": "p", "c": "q", "d": "r"})
    assert set(active(found).values()) == {2}
    assert set(places(found).values()) == {1}


def test_new_member_gets_tasks_and_others_keep_the_rest() -> None:
    parts = {"0": part(6)}
    before = share(parts, {"a": "p", "b": "q"})
    after = share(parts, {"a": "p", "b": "q", "c": "r"}, before)
    assert active(after) == {"a": 2, "b": 2, "c": 2}
    for name in "ab":
        assert after[name].active["0"] <= before[name].active["0"]
    back = share(parts, {"a": "p", "b": "q"}, after)
    assert all(after[name].active["0"] <= back[name].active["0"] for name in "ab")


def test_standby_task_is_in_other_process() -> None:
    parts = {"0": part(4, stateful=True), "1": part(2)}
    found = share(parts, {"a": "p", "b": "p", "c": "q"}, standbys=1)
    process = {"a": "p", "b": "p", "c": "q"}
    has = [
        (process[name], task, kind)
        for name, lists in found.items()
        for kind, tasks in (("active", lists.active), ("standby", lists.standby))
        for task in tasks.get("0", ())
    ]
    assert len({(where, task) for where, task, _ in has}) == len(has) == 8
    assert not any("1" in lists.standby for lists in found.values()), "the subtopology is stateless"


def test_member_with_standby_takes_over_task() -> None:
    parts = {"0": part(2, stateful=True)}
    members = {"a": "p", "b": "q", "c": "r"}
    had = {
        "a": TasksTuple(freeze_tasks([("0", [0])]), freeze_tasks([("0", [1])])),
        "c": TasksTuple(freeze_tasks([("0", [1])])),
    }
    del members["c"]
    found = share(parts, members, had, standbys=1)
    assert found["a"].active["0"] == {0}
    assert found["b"].active["0"] == {1}, "the member with the standby has reached its quota"
    found = share(parts, members, {"a": TasksTuple(standby=freeze_tasks([("0", [1])]))}, standbys=1)
    assert found["a"].active["0"] == {1}
    assert found["b"].active["0"] == {0}


def test_member_with_highest_offset_gets_standby() -> None:
    parts = {"0": part(1, stateful=True)}
    offsets = {"b": 4, "c": 9, "d": 0}

    def standbys_of(*had: str) -> set[str]:
        known = {
            name: AssignmentMemberSpec(
                name,
                TasksTuple(
                    freeze_tasks([("0", [0])] if name == "a" else []),
                    freeze_tasks([("0", [0])] if name in had else []),
                ),
                {"0": {0: offsets[name]}} if name in offsets else {},
            )
            for name in "abcd"
        }
        found = run_to_end(assign_tasks(known, parts, 1))
        return {name for name, lists in found.items() if lists.standby}

    assert standbys_of() == {"c"}
    assert standbys_of("d") == {"d"}, "a standby ranks before offsets"


def test_equal_members_are_ordered_by_id() -> None:
    parts = {"0": part(3)}
    members = {"c": "r", "a": "p", "b": "q"}
    found = share(parts, members)
    assert {name: lists.active["0"] for name, lists in found.items()} == {
        "a": {0},
        "b": {2},
        "c": {1},
    }, "Java's PriorityQueue returns the third of three equal processes before the second"
    assert share(parts, dict(sorted(members.items()))) == found
    swapped = share({"0": part(1)}, {"a": "q", "b": "p"})
    assert swapped["b"].active, "processes are ordered by ID, too"


def test_standbys_do_not_outnumber_processes() -> None:
    found = share({"0": part(2, stateful=True)}, {"a": "p", "b": "p"}, standbys=2)
    assert all(not lists.standby for lists in found.values())


@pytest.mark.parametrize("seed", range(20))
def test_random_members_get_complete_assignment(seed: int) -> None:
    """Each task is active once, standbys are in different processes, and the load is balanced."""
    rng = random.Random(seed)
    parts = {
        str(n): part(rng.randint(1, 12), stateful=rng.random() < 0.5)
        for n in range(rng.randint(1, 4))
    }
    tasks = {(name, index) for name, each in parts.items() for index in range(each.tasks)}
    had: TaskTargets = {}
    members: dict[str, str] = {}
    for step in range(12):
        if members and rng.random() < 0.4:
            members.pop(rng.choice(list(members)))
        if not members or rng.random() < 0.7:
            members[f"m{step}"] = f"p{rng.randint(0, 3)}"
        standbys = rng.randint(0, 2)
        had = share(parts, members, {n: had[n] for n in members if n in had}, standbys)
        assert places(had) == Counter(tasks)
        copies: Counter[tuple[str, str, int]] = Counter(
            (members[name], subtopology, partition)
            for name, lists in had.items()
            for kept in (lists.active, lists.standby)
            for subtopology, partitions in kept.items()
            for partition in partitions
        )
        assert max(copies.values()) == 1, "a process has each task at most once"
        for name, each in parts.items():
            wanted = 1 + (min(standbys, len({*members.values()}) - 1) if each.is_stateful else 0)
            for index in range(each.tasks):
                copy_count = sum(1 for _, n, i in copies if (n, i) == (name, index))
                assert copy_count == wanted


@pytest.mark.parametrize("standbys", [0, 2])
def test_reported_copies_of_tasks_are_compared_in_small_pieces(standbys: int) -> None:
    """Each of many members may report an offset of each task."""
    tasks, members = 1_000, 50
    offsets = {"0": dict.fromkeys(range(tasks), 7)}
    known = {f"m{n}": AssignmentMemberSpec(f"p{n}", NO_TARGET, offsets) for n in range(members)}
    pieces = sum(1 for _ in assign_tasks(known, {"0": part(tasks, stateful=True)}, standbys))
    phases = 2 + bool(standbys)  # read, keep active tasks, keep standbys
    assert pieces >= phases * tasks * members // WORK_AT_ONCE
