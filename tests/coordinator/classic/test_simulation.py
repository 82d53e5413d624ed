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
BUG_SEEDS = 200


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
        print(f"\n  {SEEDS} seeds:", ", ".join(f"{n} {event}" for event, n in sorted(work.items())))
    assert work["joins"] > 30 * SEEDS
    assert work["syncs"] > 10 * SEEDS
    assert work["commits"] > 4 * SEEDS
    assert work["restarts"] > SEEDS
    assert work["refusals"] > 3 * SEEDS
    assert work["broken connections"] > SEEDS
    assert work["log checks"] > 20 * SEEDS


# -- planted bugs: each must be detected

Plant = Callable[[pytest.MonkeyPatch], None]


def _pending_syncs_are_dropped(patch: pytest.MonkeyPatch) -> None:
    """A starting rebalance does not answer pending SyncGroup requests."""

    def fail_syncs(self: Rebalances, group: ClassicGroup, *_: object) -> None:
        for member in group.members.values():
            member.pending_sync = None

    patch.setattr(Rebalances, "fail_syncs", fail_syncs)


def _commits_of_old_generations_are_accepted(patch: pytest.MonkeyPatch) -> None:
    check = OffsetMetadataManager._check_committer

    def check_unless_old_generation(
        self: OffsetMetadataManager,
        group: ClassicGroup | None,
        request: OffsetCommitRequest,
        now: Now,
        version: int,
    ) -> ErrorCode:
        code = check(self, group, request, now, version)
        return ErrorCode.NONE if code is ErrorCode.ILLEGAL_GENERATION else code

    patch.setattr(OffsetMetadataManager, "_check_committer", check_unless_old_generation)


def _join_phase_has_no_timeout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rebalances, "_end_joins_after", lambda *_: None)


def _sync_phase_has_no_timeout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rebalance, "SYNC", "nothing")
    patch.setattr(Rebalances, "_expire_syncs", lambda *_: None)


def _sessions_are_not_restarted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rebalances, "keep_alive", lambda *_: None)


def _replay_drops_a_member(patch: pytest.MonkeyPatch) -> None:
    original = classic_replay._replay_members

    def forgetful(group: ClassicGroup, value: GroupMetadataValue) -> None:
        if len(value.members) > 1 and not group.members:
            value.members = value.members[:-1]
        original(group, value)

    patch.setattr(classic_replay, "_replay_members", forgetful)


def _replay_keeps_old_assignments(patch: pytest.MonkeyPatch) -> None:
    """The first member keeps the assignment of the previous generation."""
    original = classic_replay._replay_members

    def stale(group: ClassicGroup, value: GroupMetadataValue) -> None:
        first = next(iter(group.members.values()), None)
        before = first.assignment if first is not None else b""
        original(group, value)
        if first is not None and before and first.id in group.members:
            first.assignment = before

    patch.setattr(classic_replay, "_replay_members", stale)


def _generation_is_not_incremented(patch: pytest.MonkeyPatch) -> None:
    original = Rebalances._next_generation

    def keep_generation(self: Rebalances, group: ClassicGroup, now: Now, result: object) -> None:
        group.generation -= 1
        original(self, group, now, result)  # type: ignore[arg-type]

    patch.setattr(Rebalances, "_next_generation", keep_generation)


def _joined_is_miscounted(patch: pytest.MonkeyPatch) -> None:
    original = ClassicGroup.remove

    def remove(self: ClassicGroup, member: ClassicGroupMember) -> None:
        original(self, member)
        self.joined = max(0, self.joined - 1)

    patch.setattr(ClassicGroup, "remove", remove)


def _replaced_members_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    original = ClassicGroups._replace_in_stable_group

    def replace_without_write(  # type: ignore[no-untyped-def]
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

    patch.setattr(ClassicGroups, "_replace_in_stable_group", replace_without_write)


def _offsets_are_stored_for_wrong_partition(patch: pytest.MonkeyPatch) -> None:
    original = records.offset_record
    patch.setattr(
        offsets,
        "offset_record",
        lambda group, topic, partition, value: original(group, topic, 0, value),
    )


BUGS = [
    _pending_syncs_are_dropped,
    _commits_of_old_generations_are_accepted,
    _join_phase_has_no_timeout,
    _sync_phase_has_no_timeout,
    _sessions_are_not_restarted,
    _replay_drops_a_member,
    _replay_keeps_old_assignments,
    _generation_is_not_incremented,
    _joined_is_miscounted,
    _replaced_members_are_not_stored,
    _offsets_are_stored_for_wrong_partition,
]


@pytest.mark.slow
@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__.strip("_"))
def test_planted_bug_is_detected(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(BUG_SEEDS):
        try:
            Simulation(seed).run(STEPS)
        except Violation:
            return
    pytest.fail(f"not found in {BUG_SEEDS} seeds")
