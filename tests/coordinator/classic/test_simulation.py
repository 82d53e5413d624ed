"""Random runs of a shard, and a check that the simulation detects planted bugs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from kbroker.coordinator import Now, offsets
from kbroker.coordinator.classic import rebalance
from kbroker.coordinator.classic import replay as classic_replay
from kbroker.coordinator.classic.group import ClassicGroup, ClassicGroupMember
from kbroker.coordinator.classic.groups import ClassicGroups
from kbroker.coordinator.classic.rebalance import Rebalances
from kbroker.coordinator.common import records
from kbroker.coordinator.offsets import OffsetMetadataManager
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import GroupMetadataValue
from kbroker.protocol.messages.offsets import OffsetCommitRequest

from .simulation import Simulation, Violation

SEEDS = 60
STEPS = 400
DEFECT_SEEDS = 200


@pytest.mark.slow
def test_random_runs_violate_no_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    work: Counter[str] = Counter()
    for seed in range(SEEDS):
        simulation = Simulation(seed)
        try:
            simulation.run(STEPS)
        except Exception as error:
            error.add_note(f"seed {seed}, at {simulation.h.ms} ms")
            raise
        work += simulation.work
    with capsys.disabled():
        print(f"\n  {SEEDS} seeds:", ", ".join(f"{n} {what}" for what, n in sorted(work.items())))
    assert work["joins"] > 30 * SEEDS
    assert work["syncs"] > 10 * SEEDS
    assert work["commits"] > 4 * SEEDS
    assert work["restarts"] > SEEDS
    assert work["refusals"] > 3 * SEEDS
    assert work["broken connections"] > SEEDS
    assert work["log checks"] > 20 * SEEDS


# -- planted bugs: each must be detected

Plant = Callable[[pytest.MonkeyPatch], None]


def _forget_parked_syncs(patch: pytest.MonkeyPatch) -> None:
    """A starting rebalance does not answer pending SyncGroup requests."""

    def fail_syncs(self: Rebalances, group: ClassicGroup, *_: object) -> None:
        for member in group.members.values():
            member.pending_sync = None

    patch.setattr(Rebalances, "fail_syncs", fail_syncs)


def _commit_of_an_old_generation(patch: pytest.MonkeyPatch) -> None:
    check = OffsetMetadataManager._check_committer

    def careless(
        self: OffsetMetadataManager,
        group: ClassicGroup | None,
        request: OffsetCommitRequest,
        now: Now,
        version: int,
    ) -> ErrorCode:
        code = check(self, group, request, now, version)
        return ErrorCode.NONE if code is ErrorCode.ILLEGAL_GENERATION else code

    patch.setattr(OffsetMetadataManager, "_check_committer", careless)


def _no_limit_of_the_join_phase(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rebalances, "_end_joins_after", lambda *_: None)


def _no_limit_of_the_sync_phase(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rebalance, "SYNC", "nothing")
    patch.setattr(Rebalances, "_expire_syncs", lambda *_: None)


def _sessions_do_not_begin_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rebalances, "keep_alive", lambda *_: None)


def _a_member_is_lost_in_replay(patch: pytest.MonkeyPatch) -> None:
    original = classic_replay._replay_members

    def forgetful(group: ClassicGroup, value: GroupMetadataValue) -> None:
        if len(value.members) > 1 and not group.members:
            value.members = value.members[:-1]
        original(group, value)

    patch.setattr(classic_replay, "_replay_members", forgetful)


def _assignments_of_the_generation_before(patch: pytest.MonkeyPatch) -> None:
    """The first member keeps the assignment of the previous generation."""
    original = classic_replay._replay_members

    def stale(group: ClassicGroup, value: GroupMetadataValue) -> None:
        first = next(iter(group.members.values()), None)
        before = first.assignment if first is not None else b""
        original(group, value)
        if first is not None and before and first.id in group.members:
            first.assignment = before

    patch.setattr(classic_replay, "_replay_members", stale)


def _the_generation_stays(patch: pytest.MonkeyPatch) -> None:
    original = Rebalances._next_generation

    def same(self: Rebalances, group: ClassicGroup, now: Now, result: object) -> None:
        group.generation -= 1
        original(self, group, now, result)  # type: ignore[arg-type]

    patch.setattr(Rebalances, "_next_generation", same)


def _joined_is_miscounted(patch: pytest.MonkeyPatch) -> None:
    original = ClassicGroup.remove

    def remove(self: ClassicGroup, member: ClassicGroupMember) -> None:
        original(self, member)
        self.joined = max(0, self.joined - 1)

    patch.setattr(ClassicGroup, "remove", remove)


def _swaps_are_not_written(patch: pytest.MonkeyPatch) -> None:
    original = ClassicGroups._replace_in_stable_group

    def unwritten(  # type: ignore[no-untyped-def]
        self: ClassicGroups,
        group: ClassicGroup,
        member: ClassicGroupMember,
        new_id: str,
        *rest: object,
    ):
        result = original(self, group, member, new_id, *rest)  # type: ignore[arg-type]
        group.rename(member, new_id)
        result.records.clear()
        return result

    patch.setattr(ClassicGroups, "_replace_in_stable_group", unwritten)


def _offsets_are_stored_for_the_wrong_partition(patch: pytest.MonkeyPatch) -> None:
    original = records.offset_record
    patch.setattr(
        offsets,
        "offset_record",
        lambda group, topic, partition, value: original(group, topic, 0, value),
    )


DEFECTS = [
    _forget_parked_syncs,
    _commit_of_an_old_generation,
    _no_limit_of_the_join_phase,
    _no_limit_of_the_sync_phase,
    _sessions_do_not_begin_again,
    _a_member_is_lost_in_replay,
    _assignments_of_the_generation_before,
    _the_generation_stays,
    _joined_is_miscounted,
    _swaps_are_not_written,
    _offsets_are_stored_for_the_wrong_partition,
]


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__.strip("_"))
def test_planted_bug_is_detected(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(DEFECT_SEEDS):
        try:
            Simulation(seed).run(STEPS)
        except Violation:
            return
    pytest.fail(f"not found in {DEFECT_SEEDS} seeds")
