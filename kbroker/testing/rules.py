"""Fault rules: which requests they hit, on which of their calls, and what happens to those.

The rules know nothing of connections; `fault_injector` carries them out. What they can do is
what franz-go's kfake and librdkafka's mock broker can, and more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbroker.handlers.context import Api
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.schema import Struct, fields

from .calls import Call, CallRule
from .names import format_versions
from .releases import Limits, apply_limits
from .rows import (
    GROUP_LISTS,
    RESOURCE_LISTS,
    TOPIC_LISTS,
    NameOf,
    group_of,
    group_rows,
    partitions_of,
    resources_of,
)
from .schedule import AnyRule, Effect

REQUESTS_KEPT = 500
"""How many requests the log of a broker remembers, for reports of failures."""
SIMILAR_SHOWN = 5
GROUP = 0
"""The key type of FindCoordinator that asks for groups."""


class RequestInfo(NamedTuple):
    """What rules can tell of a request.

    `partitions` maps the topics that it names to the partitions of each, none for a topic that is
    named as a whole. A topic whose id is not known is named by that id.
    """

    api: ApiKey
    version: int
    client_id: str
    partitions: dict[str, set[int]]
    groups: frozenset[str]
    transactional_id: str | None
    resources: frozenset[str] = frozenset()
    request: Any = None
    """The request itself, as long as it is looked at; what is kept is without it."""

    def __str__(self) -> str:
        parts = [f"{self.api.api_name} {self.version}"]
        parts += [f"topic {topic!r}" for topic in sorted(self.partitions)]
        parts += [f"group {group!r}" for group in sorted(self.groups)]
        parts += [f"resource {resource!r}" for resource in sorted(self.resources)]
        if self.transactional_id is not None:
            parts.append(f"transactional_id {self.transactional_id!r}")
        return f"{', '.join(parts)} from {self.client_id!r}"


@dataclass(slots=True)
class Target:
    """Which requests a fault hits; None, and an empty set, stand for any."""

    apis: frozenset[ApiKey] = frozenset()
    topic: str | None = None
    partitions: frozenset[int] = frozenset()
    group: str | None = None
    client_id: str | None = None
    transactional_id: str | None = None
    resource: str | None = None
    versions: range | None = None

    def matches(self, info: RequestInfo) -> bool:
        """Whether the request meets every criterion."""
        return (
            self.has_api(info.api)
            and self.client_id in (None, info.client_id)
            and self.transactional_id in (None, info.transactional_id)
            and (self.versions is None or info.version in self.versions)
            and (self.group is None or self.group in info.groups)
            and (self.resource is None or self.resource in info.resources)
            and self._concerns_partitions(info)
        )

    def has_api(self, api: ApiKey) -> bool:
        """Whether requests of this API are meant."""
        return not self.apis or api in self.apis

    @property
    def filters_partitions(self) -> bool:
        """Whether a request must say which partitions it is about."""
        return self.topic is not None or bool(self.partitions)

    def _concerns_partitions(self, info: RequestInfo) -> bool:
        return not self.filters_partitions or any(
            self.covers(topic, partition)
            for topic, partitions in info.partitions.items()
            for partition in partitions or (None,)
        )

    def covers(self, topic: str, partition: int | None) -> bool:
        """Whether a row of a request or response about this partition (None: all) is meant."""
        return self.topic in (None, topic) and (
            not self.partitions or partition is None or partition in self.partitions
        )

    def covers_group(self, group: str) -> bool:
        """Whether a row about this group is meant."""
        return self.group in (None, group)

    def covers_resource(self, resource: str) -> bool:
        """Whether a row about the settings of this resource is meant."""
        return self.resource in (None, resource)

    def __str__(self) -> str:
        parts = [" or ".join(api.api_name for api in sorted(self.apis)) or "any request"]
        for name in ("topic", "group", "client_id", "transactional_id", "resource"):
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name} {value!r}")
        if self.partitions:
            parts.append(f"partition {', '.join(map(str, sorted(self.partitions)))}")
        if self.versions is not None:
            parts.append(f"versions {format_versions(self.versions)}")
        return ", ".join(parts)


Hook = Callable[[Any, RequestInfo], Any]
"""Gets a request (or its response, `at="after"`) and what is asked; returns None to let it pass, a
response, or an awaitable of either."""


@dataclass(slots=True, eq=False)
class Rule(AnyRule):
    """One armed fault for Kafka's requests.

    With `until` it hits only those of clients that have not sent a request of that API since they were
    hit (or, if `frees_all`, since it was armed); `when` has the last word. `top_level` puts an error
    beside the rows of an answer, not into them. `bit` belongs to corrupted batches.
    """

    target: Target
    code: ErrorCode = ErrorCode.NONE
    top_level: bool = False
    bit: int = 0
    hook: Hook | None = None
    until: ApiKey | None = None
    frees_all: bool = False
    when: Callable[[Any], bool] | None = None
    clients: set[str] = field(default_factory=set)
    """Those that were hit."""
    released: set[str] = field(default_factory=set)
    """The clients that have sent what `until` waits for."""

    def reset_counts(self) -> None:
        AnyRule.reset_counts(self)
        self.clients.clear()
        self.released.clear()

    def may_hit(self, client_id: str) -> bool:
        """Whether a request of this client can still be hit."""
        return not self.is_used_up and client_id not in self.released

    def note_request(self, info: RequestInfo) -> None:
        """Take note of what a client asks for."""
        if info.api is self.until and (self.frees_all or info.client_id in self.clients):
            self.released.add(info.client_id)

    def takes(self, info: RequestInfo) -> bool:
        """Whether this call is hit; counts it."""
        if not self.may_hit(info.client_id) or not self.target.matches(info):
            return False
        if self.when is not None and not self.when(info.request):
            return False
        if not self.is_due():
            return False
        self.clients.add(info.client_id)
        return True

    def __str__(self) -> str:
        what = self.code.name if self.effect is Effect.ERROR else self.effect.value
        return f"{what} for {self.target}"


class Hit(NamedTuple):
    """A rule hit a request, at a moment of log time."""

    at_ms: int
    rule: Rule
    info: RequestInfo


class Faults:
    """The rules of one broker, what it was asked lately, and which versions it admits to."""

    def __init__(self) -> None:
        self.rules: list[AnyRule] = []
        self.hits: deque[Hit] = deque(maxlen=REQUESTS_KEPT)
        self.now_ms: Callable[[], int] = lambda: 0
        """The time of hits."""
        self.log: deque[RequestInfo] = deque(maxlen=REQUESTS_KEPT)
        self.counts: Counter[tuple[ApiKey, str]] = Counter()
        """Requests of each API and client id."""
        self.calls: deque[Call] = deque(maxlen=REQUESTS_KEPT)
        """Those of the schema registry."""
        self.own: set[ApiKey] = set()
        """What the test has asked through the kit, which no fault hits."""
        self.limits: Limits = {}
        self.failures: list[Exception] = []
        """What functions of the test have raised."""
        self.changed: Callable[[], None] = lambda: None
        """Called after each request: somebody may be waiting for one."""

    def arm(self, rule: AnyRule) -> None:
        self.rules.append(rule)

    def disarm(self, rule: AnyRule) -> None:
        """Take a rule away; what it did counts."""
        self.rules.remove(rule)

    def forget(self) -> None:
        """Remember nothing of what was asked and hit so far."""
        self.hits.clear()
        self.log.clear()
        self.calls.clear()
        self.counts.clear()
        self.own.clear()

    def within_limits(self, apis: Mapping[int, Api]) -> Mapping[int, Api]:
        """What of `apis` clients may know of."""
        return apply_limits(apis, self.limits) if self.limits else apis

    def match_request(self, info: RequestInfo) -> Rule | None:
        """The first rule that does something to this request; counts the request.

        Rules that corrupt batches are not info: `match_batch` asks them when there are batches.
        """
        self.log.append(info._replace(request=None))
        self.counts[info.api, info.client_id] += 1
        rules = self._of_requests
        for rule in rules:
            rule.note_request(info)
        return self._first(rules, info)

    @property
    def _of_requests(self) -> list[Rule]:
        return [rule for rule in self.rules if isinstance(rule, Rule)]

    def match_call(self, call: Call) -> CallRule | None:
        """The first rule that does something to this call of the schema registry."""
        self.calls.append(call)
        rules = (rule for rule in self.rules if isinstance(rule, CallRule) and rule.takes(call))
        found = next((rule for rule in rules if rule.effect is not Effect.PASS), None)
        self.changed()
        return found

    def match_after(self, info: RequestInfo, passed: Rule) -> Rule | None:
        """The next rule that does something, when the hook of one has let the request pass."""
        rules = self._of_requests
        if passed not in rules:
            return None
        return self._first(rules[rules.index(passed) + 1 :], info)

    def match_batch(self, info: RequestInfo, has_records: Callable[[Rule], bool]) -> Rule | None:
        """The first rule that corrupts a batch of this request or of its answer."""
        rules = (rule for rule in self._of_requests if rule.effect is Effect.CORRUPT_BATCH)
        taken = (rule for rule in rules if has_records(rule) and self._takes(rule, info))
        return next(taken, None)

    def _first(self, rules: Iterable[Rule], info: RequestInfo) -> Rule | None:
        candidates = (rule for rule in rules if rule.effect is not Effect.CORRUPT_BATCH)
        taken = (rule for rule in candidates if self._takes(rule, info))
        found = next((rule for rule in taken if rule.effect is not Effect.PASS), None)
        self.changed()
        return found

    def _takes(self, rule: Rule, info: RequestInfo) -> bool:
        try:
            is_hit = rule.takes(info)
        except Exception as error:  # noqa: BLE001 (`when` is the test's)
            self.failures.append(error)
            return False
        if is_hit:
            self.hits.append(Hit(self.now_ms(), rule, info._replace(request=None)))
            self.changed()
        return is_hit

    def corrupts(self, info: RequestInfo) -> bool:
        """Whether a rule would corrupt a batch of this request or of its answer."""
        return any(
            rule.effect is Effect.CORRUPT_BATCH
            and rule.may_hit(info.client_id)
            and rule.target.matches(info)
            for rule in self._of_requests
        )

    def needs_partitions(self, client_id: str) -> bool:
        """Whether a rule that is not used up looks at the partitions of a fetch."""
        return any(
            rule.may_hit(client_id)
            and rule.target.has_api(ApiKey.FETCH)
            and (rule.target.filters_partitions or rule.effect is Effect.ERROR)
            for rule in self._of_requests
        )

    def unfired(self) -> list[AnyRule]:
        """Rules that should have hit something and did not."""
        return [rule for rule in self.rules if not rule.hits and not rule.may_stay_unfired]

    def report(self, rule: AnyRule) -> str:
        """What a rule waited for, and what came closest."""
        return f"{rule} hit {rule.hits} requests; {'; '.join(self.near_misses(rule))}"

    def near_misses(self, rule: AnyRule) -> list[str]:
        """What was asked that is most like what the rule waits for: lines for a report."""
        if rule.calls:
            return [f"saw {rule.calls} such requests, it waits for number {rule.first}"]
        if isinstance(rule, CallRule):
            return self._near_calls(rule)
        assert isinstance(rule, Rule)
        same = [info for info in self.log if rule.target.has_api(info.api)]
        if rule.effect is Effect.CORRUPT_BATCH and any(map(rule.target.matches, same)):
            return ["saw such requests, but no batch in any of them"]
        counted = Counter(str(info) for info in same).most_common(SIMILAR_SHOWN)
        if counted:
            return [f"saw {count} x {info}" for info, count in counted]
        if any(map(rule.target.has_api, self.own)):
            return ["saw no such request but those of the test's own calls, which no fault hits"]
        return ["saw no such request"]

    def _near_calls(self, rule: CallRule) -> list[str]:
        same = [str(call) for call in self.calls if rule.target.has_method(call.method)]
        counted = Counter(same).most_common(SIMILAR_SHOWN)
        return [f"saw {count} x {call}" for call, count in counted] or ["saw no such call"]


CRITERIA = ("topic", "partitions", "group", "transactional_id", "resource")
"""What of a target only some requests say."""


TRANSACTIONAL_IDS = ("transactional_id", "v3_and_below_transactional_id")
"""Fields in which requests of clients name one."""


def criteria_of(api: ApiKey) -> set[str]:
    """Those that the requests of an API say: what `request_info` finds in them."""
    request = messages.request_class(api)
    names = field_names(request)
    found = {"transactional_id"} if names & set(TRANSACTIONAL_IDS) else set()
    if names & {"group_id", *GROUP_LISTS}:
        found.add("group")
    if names & set(RESOURCE_LISTS):
        found.add("resource")
    rows = [each.kind for each in fields(request) if each.name in GROUP_LISTS]
    in_groups = {name for row in rows if not isinstance(row, str) for name in field_names(row)}
    if (names | in_groups) & set(TOPIC_LISTS):
        found |= {"topic", "partitions"}
    return found | ({"transactional_id"} if api is ApiKey.FIND_COORDINATOR else set())


def field_names(message: type[Struct]) -> set[str]:
    """The names of a message's fields."""
    return {each.name for each in fields(message)}


def request_info(
    api: ApiKey, version: int, client_id: str | None, request: Any, name_of: NameOf
) -> RequestInfo:
    """Read out of a decoded request what rules look at; `name_of` knows topic ids."""
    partitions = partitions_of(request, name_of)
    groups = {getattr(request, "group_id", ""), *map(group_of, group_rows(request))}
    named = (getattr(request, name, None) for name in TRANSACTIONAL_IDS)
    transactional_id = next(filter(None, named), None)
    for row in group_rows(request):
        for topic in partitions_of(row, name_of):
            partitions.setdefault(topic, set())
    if api is ApiKey.FIND_COORDINATOR:
        groups.add(request.key)
        if request.key_type != GROUP:
            transactional_id, groups = min(groups - {""}, default=None), set()
    return RequestInfo(
        api,
        version,
        client_id or "",
        partitions,
        frozenset(groups - {""}),
        transactional_id,
        frozenset(resources_of(request)),
        request,
    )
