"""Group epochs and target assignments of consumer groups (KIP-848).

A step changes one member or removes members. A step bumps the group epoch if its own change, or a
change of the topics, requires a new assignment. The target for the new epoch is computed at once,
or after the assignment interval. All changes of a step are records. For large groups, and for
patterns over many topics, the work is done in the background, and the members get the result with
later heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Mapping
from functools import partial
from typing import NamedTuple
from uuid import UUID

from kbroker.protocol.errors import KafkaError

from ..common.assignor import MemberSubscription, Targets, TopicShape
from ..common.modern_group import FIRST_EPOCH, NO_TARGET, Target
from ..common.record import CoordinatorRecord
from ..common.result import Now, Pieces, Result
from ..common.settings import ConsumerGroupSettings
from ..common.target_assignments import (
    MEMBERS_AT_ONCE,
    SUBSCRIBED_AT_ONCE,
    SYNCHRONOUS_WORK_MAX,
    TargetRecords,
    is_current_group,
    is_within_interval,
    run_to_end,
    store_targets,
)
from ..common.topics import KnownTopics
from ..state import ShardState
from .assignors import ASSIGNORS
from .group import ConsumerGroup, ConsumerGroupMember, ConsumerGroupState, ResolvedRegularExpression
from .patterns import (
    MissingPatternEngineError,
    Pattern,
    check_pattern_engine,
    compile_pattern,
)
from .records import (
    epoch_record,
    member_tombstones,
    resolved_record,
    resolved_tombstone,
    target_epoch_record,
    target_record,
    topics_tombstone,
)

# Topics to match against a pattern per piece.
TOPICS_AT_ONCE = 200
# Patterns to resolve within a heartbeat.
PATTERNS_AT_ONCE = 10
# Instructions of patterns to visit per piece, and within a heartbeat, at about 20 ns each.
STEPS_AT_ONCE = 250_000
SYNCHRONOUS_STEPS_MAX = 1_000_000
# Interval at which patterns are resolved again if no topic changed: ACLs may have changed.
REFRESH_INTERVAL_MS = 600_000
# Minimum time between two resolutions after changes of topics, which come in bursts.
REFRESH_PAUSE_MS = 1_000
# Version of a stored resolved pattern. Kafka stores an offset of its metadata log.
NO_VERSION = 0


class TopicRights(NamedTuple):
    """Permissions of a member's client to describe topics, if ACLs are enforced.

    Attributes:
        viewer: Identity of the client. Clients with equal identities may describe the same topics.
        may_describe: Returns True if the client may describe the topic of that name.
    """

    viewer: Hashable
    may_describe: Callable[[str], bool]


class Step:
    """Changes of a group by one request of one member.

    Attributes:
        group: The group before the step. It may not be in the state yet.
        records: Records to store.
        before, member: The member before the step (empty if it is new) and after it.
        replaced: The static member that `member` replaces under another ID.
        epoch, assignment_epoch, hash, resolved: Values of the group after the step.
        work: Work to do in the background once the records are stored.
        is_described: False until the topics of the pattern that the member may describe are known.
        restore: Undoes the changes of the group that the step made without a record.
    """

    __slots__ = (
        "assignment_epoch",
        "before",
        "epoch",
        "group",
        "hash",
        "is_described",
        "member",
        "records",
        "replaced",
        "resolved",
        "restore",
        "work",
    )

    def __init__(self, group: ConsumerGroup, records: list[CoordinatorRecord]) -> None:
        self.group = group
        self.records = records
        self.before = self.member = ConsumerGroupMember("")
        self.replaced: ConsumerGroupMember | None = None
        self.epoch = group.epoch
        self.assignment_epoch = group.assignment_epoch
        self.hash = group.metadata_hash
        self.resolved: Mapping[str, ResolvedRegularExpression] = group.resolved
        self.work: Pieces | None = None
        self.is_described = True
        self.restore: Callable[[], None] = _nothing

    @property
    def previous_member(self) -> ConsumerGroupMember | None:
        """Existing member that `member` replaces, or None if the member is new."""
        return self.replaced or self.group.members.get(self.member.id)

    def members(self) -> list[ConsumerGroupMember]:
        """Return all members after the step."""
        removed = (self.member.id, self.replaced.id if self.replaced else None)
        return [each for each in self.group.members.values() if each.id not in removed] + [
            self.member
        ]

    def state(self) -> ConsumerGroupState:
        """Return the state of the group after the step."""
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        own = (self.member.id, self.replaced.id if self.replaced else None)
        if self.assignment_epoch == self.group.assignment_epoch:
            waits = any(each not in own for each in self.group.unreconciled)
        else:
            waits = any(each not in own for each in self.group.members)
        if waits or not self.member.is_reconciled_to(self.assignment_epoch):
            return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    def raise_epoch(self, metadata_hash: int) -> None:
        """Bump the group epoch, which requires a new target assignment."""
        self.epoch += 1
        self.hash = metadata_hash
        self.records.append(epoch_record(self.group.id, self.epoch, metadata_hash))
        if self.group.has_topics_record:
            self.records.append(topics_tombstone(self.group.id))


class TargetAssignments:
    """Epochs, resolved patterns and target assignments of the consumer groups of one shard."""

    def __init__(self, state: ShardState, topics: KnownTopics) -> None:
        self._state = state
        self._topics = topics

    # -- the epoch

    def advance(
        self,
        step: Step,
        now: Now,
        settings: ConsumerGroupSettings,
        rights: TopicRights | None,
        *,
        resolves: bool = True,
    ) -> None:
        """Bump the group epoch if the step or a change of the topics requires it.

        Args:
            step: The step.
            now: Current time.
            settings: Current settings of the group.
            rights: Topics that the member's client may describe, or None for all.
            resolves: False to leave the resolution of patterns to other members.

        Raises:
            KafkaError: INVALID_REGULAR_EXPRESSION.
        """
        group = step.group
        bump = step.member.topics != step.before.topics or _changes_assignor(step, settings)
        bump = self._resolve(step, now, rights, resolves) or bump
        if not bump and group.topics_version == self._topics.version:
            return
        names = group.topics_after(step.previous_member, step.member, step.resolved)
        found = self._topics.hash_of(names)
        if bump or found != group.metadata_hash:
            step.raise_epoch(found)
        group.topics_version = self._topics.version

    def remove_members(
        self, group: ConsumerGroup, members: Collection[ConsumerGroupMember]
    ) -> list[CoordinatorRecord]:
        """Return the records that remove members and bump the group epoch.

        A group without members needs no target, so its assignment epoch is bumped too.
        """
        records: list[CoordinatorRecord] = []
        for member in members:
            records += member_tombstones(group.id, member.id)
        for pattern in group.patterns.keys() - group.patterns_without(members).keys():
            records.append(resolved_tombstone(group.id, pattern))
        epoch = group.epoch + 1
        names = group.topics_without(members)
        records.append(epoch_record(group.id, epoch, self._topics.hash_of(names)))
        if len(members) == len(group.members):
            records.append(target_epoch_record(group.id, epoch, 0))
        return records

    # -- patterns

    def _resolve(self, step: Step, now: Now, rights: TopicRights | None, resolves: bool) -> bool:
        """Resolve patterns, and return True if members subscribe to other topics than before."""
        group, old, new = step.group, step.before.pattern or "", step.member.pattern or ""
        patterns = dict(group.patterns)
        if old != new:
            if new and new not in patterns:
                compile_pattern(new)
            if old and patterns.get(old) == 1:
                step.records.append(resolved_tombstone(group.id, old))
                del patterns[old]
        if new:
            patterns[new] = 1
        changed = old != new and (not new or new in group.resolved)
        # Even if a new pattern matches no topic, the topics of the old pattern are removed.
        drops_pattern = bool(old) and old != new
        if rights is not None:
            return self._resolve_for_client(step, rights, drops_pattern, now) or changed
        wanted = self._unresolved(group, patterns, now)
        if not wanted or group.is_resolving or not resolves:
            return changed
        names = tuple(self._topics.all_names())
        group.patterns_version = self._topics.version
        if not _is_fast(wanted, names):
            check_pattern_engine()  # here, so that the member gets the error
            step.work = self._resolve_in_background(group.id, wanted, names, drops_pattern, now)
            return changed
        found = run_to_end(_matches(wanted, names))
        return store_resolved(step, found, now) or changed or drops_pattern

    def _unresolved(self, group: ConsumerGroup, patterns: Collection[str], now: Now) -> list[str]:
        """Return the patterns to resolve: either the new ones or all."""
        known = [group.resolved[each] for each in patterns if each in group.resolved]
        if known:
            age_ms = now.log_ms - max(each.at_ms for each in known)
            is_new = group.patterns_version != self._topics.version
            if age_ms >= (REFRESH_PAUSE_MS if is_new else REFRESH_INTERVAL_MS) or age_ms < 0:
                return list(patterns)
        return [each for each in patterns if each not in group.resolved]

    def _resolve_in_background(
        self,
        group_id: str,
        patterns: Collection[str],
        names: tuple[str, ...],
        drops_pattern: bool,
        now: Now,
    ) -> Pieces:
        """Do the work of `_resolve` in pieces, and bump the epoch if subscribed topics changed."""
        group = self._state.find_group(group_id, ConsumerGroup)
        if group is None:
            return
        group.is_resolving = True
        try:
            found = yield from _matches(patterns, names)
        finally:
            group.is_resolving = False
        if self._state.find_group(group_id, ConsumerGroup) is not group:
            return
        result: Result[None] = Result()
        step = Step(group, result.records)
        found = {each: topics for each, topics in found.items() if each in group.patterns}
        if store_resolved(step, found, now) or drops_pattern:
            names_read = group.topics_after(None, None, step.resolved)
            step.raise_epoch(self._topics.hash_of(names_read))
        result.on_failure = lambda code, now: Result()  # the next heartbeat tries again
        yield result

    # -- patterns of members that may not describe all topics

    def _resolve_for_client(
        self, step: Step, rights: TopicRights, drops_pattern: bool, now: Now
    ) -> bool:
        """Find the topics of the member's pattern that its client may describe.

        Kafka resolves a pattern once for all members, with the permissions of the client whose
        heartbeat triggers the resolution. So Kafka may assign a topic to a member that may not
        describe it.

        Returns:
            True if the topics of the member have changed.
        """
        group, member = step.group, step.member
        if not member.pattern:
            return False
        known = group.described.get((member.pattern, rights.viewer))
        if known is not None and not self._is_stale(known, now):
            return self._store_described(step, rights.viewer, known, now)
        step.is_described = known is not None
        if group.is_resolving:
            return False
        names = tuple(self._topics.all_names())
        if not _is_fast([member.pattern], names):
            check_pattern_engine()
            step.work = self._resolve_for_client_in_background(
                group.id, member, names, rights, drops_pattern, now
            )
            return False
        found = run_to_end(_matches([member.pattern], names, rights.may_describe))[member.pattern]
        described = ResolvedRegularExpression(found, self._topics.version, now.log_ms)
        return self._store_described(step, rights.viewer, described, now) or drops_pattern

    def _is_stale(self, described: ResolvedRegularExpression, now: Now) -> bool:
        age_ms = now.log_ms - described.at_ms
        is_new = described.version != self._topics.version
        return age_ms >= (REFRESH_PAUSE_MS if is_new else REFRESH_INTERVAL_MS) or age_ms < 0

    def _store_described(
        self, step: Step, viewer: Hashable, described: ResolvedRegularExpression, now: Now
    ) -> bool:
        """Store the topics that a client may describe.

        Returns:
            True if the topics of the member, or those of its pattern, have changed. Apache Kafka
            raises the group epoch for both.
        """
        group, member = step.group, step.member
        assert member.pattern
        key = member.pattern, viewer
        before = group.topics_of(member, step.resolved), _topics_of(step, member.pattern)
        had_viewer, had_described = group.viewers.get(member.id), group.described.get(key)
        group.viewers[member.id], group.described[key] = viewer, described
        step.is_described = True
        step.restore = partial(_restore, group, member.id, had_viewer, key, had_described)
        if described is not had_described:
            self._store_union(step, member.pattern, now)
        return (group.topics_of(member, step.resolved), _topics_of(step, member.pattern)) != before

    def _store_union(self, step: Step, pattern: str, now: Now) -> None:
        """Store the topics that at least one member with the pattern may describe, for failover."""
        group, members = step.group, step.members()
        with_pattern = [each for each in members if each.pattern == pattern]
        used = {(each.pattern, group.viewers.get(each.id)) for each in members}
        for key in group.described.keys() - used:
            del group.described[key]
        topics = {
            name
            for each in with_pattern
            for name in group.topics_of(each._replace(topics=frozenset()), step.resolved)
        }
        known = ResolvedRegularExpression(frozenset(topics), NO_VERSION, now.log_ms)
        step.resolved = {**step.resolved, pattern: known}
        step.records.append(resolved_record(group.id, pattern, known))

    def _resolve_for_client_in_background(
        self,
        group_id: str,
        member: ConsumerGroupMember,
        names: tuple[str, ...],
        rights: TopicRights,
        drops_pattern: bool,
        now: Now,
    ) -> Pieces:
        """Do the work of `_resolve_for_client` in pieces, and bump the epoch if topics changed."""
        group, pattern = self._state.find_group(group_id, ConsumerGroup), member.pattern
        if group is None or not pattern:
            return
        group.is_resolving = True
        try:
            found = yield from _matches([pattern], names, rights.may_describe)
        finally:
            group.is_resolving = False
        known = group.members.get(member.id)
        if (
            self._state.find_group(group_id, ConsumerGroup) is not group
            or known is None
            or known.pattern != pattern
        ):
            return
        result: Result[None] = Result()
        step = Step(group, result.records)
        step.member = known
        is_first = (pattern, rights.viewer) not in group.described
        described = ResolvedRegularExpression(found[pattern], self._topics.version, now.log_ms)
        # Before the first result, the member may have left out partitions of its target.
        if self._store_described(step, rights.viewer, described, now) or drops_pattern or is_first:
            names_read = group.topics_after(None, None, step.resolved)
            step.raise_epoch(self._topics.hash_of(names_read))

        def fail(code: object, now: Now) -> Result[None]:
            step.restore()  # the next heartbeat tries again
            return Result()

        result.on_failure = fail
        yield result

    # -- the target

    def update_target(
        self, step: Step, now: Now, settings: ConsumerGroupSettings
    ) -> tuple[int, Target]:
        """Return the epoch and the target of the member, computing a new target if it is due."""
        group = step.group
        known = group.target_of(step.replaced or step.member)
        if step.epoch <= group.assignment_epoch or group.is_assigning:
            return group.assignment_epoch, known
        if is_within_interval(group.assigned_at_ms, settings.assignment_interval_ms, now):
            return group.assignment_epoch, known
        assignor = group.assignor_after(step.previous_member, step.member)
        if assignor not in settings.assignors:
            assignor = settings.assignors[0]
        members = step.members()
        shapes = self._topics.shapes_of(
            group.topics_after(step.previous_member, step.member, step.resolved)
        )
        size = sum(shape.partitions for shape in shapes.values())
        size += len(members) + _count_subscribed(members, step.resolved)
        if size > SYNCHRONOUS_WORK_MAX:
            if step.work is None:
                step.work = self._compute_in_background(group.id, assignor, now)
            return self._start_without_target(step, known)
        targets = run_to_end(self._compute_targets(group, members, step.resolved, shapes, assignor))
        for member_id, target in targets.items():
            # The target of a replaced static member was already written under its new ID in this
            # step.
            before = known if member_id == step.member.id else group.targets.get(member_id)
            if target != before or (member_id not in group.targets and step.replaced is None):
                step.records.append(target_record(group.id, member_id, target))
        step.records.append(target_epoch_record(group.id, step.epoch, now.log_ms))
        step.assignment_epoch = step.epoch
        return step.epoch, targets[step.member.id]

    def _start_without_target(self, step: Step, known: Target) -> tuple[int, Target]:
        """Return an empty target for the first epoch: a member epoch must not be 0."""
        if step.group.assignment_epoch >= FIRST_EPOCH:
            return step.group.assignment_epoch, known
        step.records.append(target_epoch_record(step.group.id, FIRST_EPOCH, 0))
        step.assignment_epoch = FIRST_EPOCH
        if step.epoch == FIRST_EPOCH:
            step.raise_epoch(step.hash)
        return FIRST_EPOCH, NO_TARGET

    def _compute_targets(
        self,
        group: ConsumerGroup,
        members: Collection[ConsumerGroupMember],
        resolved: Mapping[str, ResolvedRegularExpression],
        shapes: Mapping[UUID, TopicShape],
        assignor: str,
    ) -> Generator[None, None, Targets]:
        """Run an assignor in pieces."""
        previous = dict(group.targets)
        static_ids = dict(group.static_ids)
        topics: dict[tuple[frozenset[str], str | None, Hashable], frozenset[UUID]] = {}
        subscribers: dict[str, MemberSubscription] = {}
        work = 0
        for member in members:
            key = member.topics, member.pattern, group.viewers.get(member.id)
            if key not in topics:
                topics[key] = self._topics.ids_of(group.topics_of(member, resolved))
                work += len(topics[key])
            target = previous.get(member.id) or previous.get(
                static_ids.get(member.instance_id or "", "")
            )
            subscribers[member.id] = MemberSubscription(
                topics[key], target or NO_TARGET, member.instance_id, member.rack_id
            )
            work += SUBSCRIBED_AT_ONCE // MEMBERS_AT_ONCE
            if work >= SUBSCRIBED_AT_ONCE:
                work = 0
                yield
        return (yield from ASSIGNORS[assignor](subscribers, shapes))

    def _compute_in_background(self, group_id: str, assignor: str, now: Now) -> Pieces:
        """Compute the target of a large group in pieces, for the group epoch at the start."""
        group = self._state.find_group(group_id, ConsumerGroup)
        if group is None or group.is_assigning:
            return
        group.is_assigning = True
        epoch = group.epoch
        shapes = self._topics.shapes_of(group.topics_after(None, None, group.resolved))
        members = tuple(group.members.values())
        targets = yield from self._compute_targets(
            group, members, dict(group.resolved), shapes, assignor
        )
        is_current = partial(is_current_group, self._state.groups, group)
        records = TargetRecords(target_record, target_epoch_record)
        yield from store_targets(group, targets, epoch, now, is_current, records)


def _nothing() -> None:
    """Do nothing: the step has no changes to undo."""


def _restore(
    group: ConsumerGroup,
    member_id: str,
    viewer: Hashable,
    key: tuple[str, Hashable],
    described: ResolvedRegularExpression | None,
) -> None:
    """Restore the viewer of a member, and the topics that this viewer may describe."""
    group.viewers.pop(member_id, None)
    if viewer is not None:
        group.viewers[member_id] = viewer
    group.described.pop(key, None)
    if described is not None:
        group.described[key] = described


def _topics_of(step: Step, pattern: str) -> frozenset[str]:
    """Return the topics of a resolved pattern; an empty set if it is not resolved yet."""
    found = step.resolved.get(pattern)
    return frozenset() if found is None else found.topics


def _count_subscribed(
    members: Collection[ConsumerGroupMember], resolved: Mapping[str, ResolvedRegularExpression]
) -> int:
    """Return the number of topics of all different subscriptions."""
    if len(members) == 1:
        return 0
    subscriptions = {(each.topics, each.pattern) for each in members}
    if len(subscriptions) == 1:
        return 0
    by_pattern = (resolved.get(pattern or "") for _, pattern in subscriptions)
    return sum(len(topics) for topics, _ in subscriptions) + sum(
        len(found.topics) for found in by_pattern if found is not None
    )


def store_resolved(step: Step, found: Mapping[str, frozenset[str]], now: Now) -> bool:
    """Store the topics of patterns, and return True if they changed."""
    known = dict(step.resolved)
    changed = False
    for pattern, topics in found.items():
        before = known.get(pattern)
        changed = changed or topics != (frozenset() if before is None else before.topics)
        known[pattern] = ResolvedRegularExpression(topics, NO_VERSION, now.log_ms)
        step.records.append(resolved_record(step.group.id, pattern, known[pattern]))
    step.resolved = known
    return changed


def _matches(
    patterns: Collection[str],
    names: Collection[str],
    may_describe: Callable[[str], bool] = lambda name: True,
) -> Generator[None, None, dict[str, frozenset[str]]]:
    """Find the topics that match each pattern and that a client may describe, in pieces."""
    found: dict[str, frozenset[str]] = {}
    steps = 0
    for source in patterns:
        pattern = _compiled(source)
        topics: set[str] = set()
        if pattern is not None:
            for count, name in enumerate(names, 1):
                if pattern.matches(name) and may_describe(name):
                    topics.add(name)
                steps += pattern.steps(len(name))
                if steps >= STEPS_AT_ONCE or not count % TOPICS_AT_ONCE:
                    steps = 0
                    yield
        found[source] = frozenset(topics)
        yield
    return found


def _is_fast(patterns: Collection[str], names: Collection[str]) -> bool:
    """Return True if patterns may be resolved within a heartbeat."""
    if len(patterns) > PATTERNS_AT_ONCE or len(names) * len(patterns) > SYNCHRONOUS_WORK_MAX:
        return False
    name_bytes = sum(map(len, names))
    compiled = filter(None, map(_compiled, patterns))
    return sum(each.steps(name_bytes) for each in compiled) <= SYNCHRONOUS_STEPS_MAX


def _compiled(pattern: str) -> Pattern | None:
    """Return a pattern of a member, or None if only an older version accepted it."""
    try:
        return compile_pattern(pattern)
    except MissingPatternEngineError:
        raise
    except KafkaError:
        return None


def _changes_assignor(step: Step, settings: ConsumerGroupSettings) -> bool:
    """Return True if the step changes the assignor that most members prefer."""
    default = settings.assignors[0]
    before = step.group.assignor_after(None, None) or default
    return (step.group.assignor_after(step.previous_member, step.member) or default) != before
