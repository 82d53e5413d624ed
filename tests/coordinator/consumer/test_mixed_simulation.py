"""Random runs of one group with members of both protocols, and planted bugs to detect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.coordinator.common.offset_checks import CommitCheck, uniform_check
from kbroker.coordinator.consumer import offsets as consumer_offsets
from kbroker.coordinator.consumer import reconciliation
from kbroker.coordinator.consumer import replay as consumer_replay
from kbroker.coordinator.consumer.conversion import Conversion
from kbroker.coordinator.consumer.group import ConsumerGroup, ConsumerGroupMember
from kbroker.coordinator.consumer.groups import ConsumerSessions
from kbroker.coordinator.consumer.target_assignments import Step, TargetAssignments
from kbroker.protocol.errors import ErrorCode

from .mixed_simulation import MixedSimulation
from .simulation import Violation

SEEDS = 40
# Three of 100 seeds detect the rarest bug.
PLANTED_BUG_SEEDS = 300
STEPS = 150


def run(seed: int, *, moves_always: bool = False) -> Counter[str]:
    simulation = MixedSimulation(seed, moves_always=moves_always)
    try:
        simulation.run(STEPS)
        simulation.heal()
    except Violation as error:
        raise Violation(f"seed {seed}: {error}") from error
    return simulation.work


def run_all() -> None:
    for seed in range(PLANTED_BUG_SEEDS):
        run(seed)


@pytest.mark.slow
def test_random_runs_of_mixed_group_assign_no_partition_twice() -> None:
    work: Counter[str] = Counter()
    for seed in range(SEEDS):
        work += run(seed)
    for event in ("became classic", "old left", "paused", "twice", "restarted", "lost"):
        assert work[event] > SEEDS / 4, work
    assert work["old joined"] > SEEDS * 4, work
    for event in ("late commits taken", "late commits refused"):
        assert work[event] > SEEDS, work


@pytest.mark.slow
def test_random_runs_of_mixed_group_survive_coordinator_move_at_every_step() -> None:
    work: Counter[str] = Counter()
    for seed in range(SEEDS // 2):
        work += run(seed, moves_always=True)
    assert work["restarted"] >= STEPS * SEEDS // 2
    assert work["old joined"] > SEEDS, work


# -- planted bugs

Plant = Callable[[pytest.MonkeyPatch], None]


def _holders_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerGroup, "holder", lambda self, *place: None)


def _revocation_is_not_awaited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconciliation, "_owns_any", lambda owned, revoking: False)


def _epoch_is_not_bumped(patch: pytest.MonkeyPatch) -> None:
    """The group epoch is not bumped when a member is removed."""

    def remove_members(self: TargetAssignments, group: ConsumerGroup, members: Any) -> Any:
        return [record for record in real(self, group, members) if record.value is None]

    real = TargetAssignments.remove_members
    patch.setattr(TargetAssignments, "remove_members", remove_members)


def _generation_restarts_at_zero(patch: pytest.MonkeyPatch) -> None:
    """A downgraded group starts with generation 0."""

    def to_classic_group(
        self: Conversion, group: Any, members: Any, epoch: int, *more: Any
    ) -> None:
        real(self, group, members, 0, *more)

    real = Conversion.to_classic_group
    patch.setattr(Conversion, "to_classic_group", to_classic_group)


def _revoking_partitions_are_not_replayed(patch: pytest.MonkeyPatch) -> None:
    """Replay drops partitions pending revocation."""

    def put_current(group: ConsumerGroup, key: Any, value: Any) -> None:
        value.partitions_pending_revocation = []
        real(group, key, value)

    real = consumer_replay._put_current
    table = dict(consumer_replay._PUT)
    table = {each: put_current if table[each] is real else table[each] for each in table}
    patch.setattr(consumer_replay, "_PUT", table)


def _sessions_never_expire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerSessions, "keep_alive", lambda self, group, member, now, settings: None)


def _conversion_drops_assignments(patch: pytest.MonkeyPatch) -> None:
    def converted(self: Conversion, *arguments: Any) -> Any:
        return real(self, *arguments)._replace(assigned={})

    real = Conversion._converted
    patch.setattr(Conversion, "_converted", converted)


def _new_member_gets_no_target(patch: pytest.MonkeyPatch) -> None:
    """A new member gets no partitions."""

    def members(self: Step) -> Any:
        return [each for each in real(self) if each is not self.member] or [self.member]

    real = Step.members
    patch.setattr(Step, "members", members)


def _old_epochs_may_commit(patch: pytest.MonkeyPatch) -> None:
    """The epoch in which a member got a partition is not checked."""

    def epoch_check(member: Any, epoch: int, stale: ErrorCode) -> CommitCheck:
        return uniform_check(stale if epoch > member.epoch else ErrorCode.NONE)

    patch.setattr(consumer_offsets, "_epoch_check", epoch_check)


def _assignment_epochs_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """The epoch in which a member got a partition is always 1."""

    def assigned_in_epoch(self: ConsumerGroupMember, topic_id: Any, partition: int) -> int | None:
        return None if real(self, topic_id, partition) is None else 1

    real = ConsumerGroupMember.assigned_in_epoch
    patch.setattr(ConsumerGroupMember, "assigned_in_epoch", assigned_in_epoch)


BUGS: dict[str, Plant] = {
    each.__name__.strip("_"): each
    for each in (
        _holders_are_ignored,
        _revocation_is_not_awaited,
        _epoch_is_not_bumped,
        _generation_restarts_at_zero,
        _revoking_partitions_are_not_replayed,
        _sessions_never_expire,
        _conversion_drops_assignments,
        _new_member_gets_no_target,
        _old_epochs_may_commit,
        _assignment_epochs_are_ignored,
    )
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_detected(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    with pytest.raises((Violation, AssertionError, KeyError)):
        run_all()
