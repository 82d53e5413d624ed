"""Fault rules: the requests that they match, and the matches that they hit.

Rules do not access connections; `fault_injector` applies their effects. The effects include all
effects of franz-go's kfake and of librdkafka's mock broker.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbroker.handlers.context import Api
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.schema import Struct, fields

from .names import format_versions
from .registry_calls import Call, CallRule
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

# Number of requests, hits and registry calls that are kept for reports of failures.
REQUESTS_KEPT = 500
# Number of different requests that the report of an unfired fault shows.
SIMILAR_SHOWN = 5
# Key type of groups in FindCoordinator requests.
GROUP = 0


class RequestInfo(NamedTuple):
    """The parts of a request that rules compare.

    Attributes:
        api: API key.
        version: API version.
        client_id: Client ID; empty if the client sends none.
        partitions: Partitions by topic; an empty set if the request names the topic as a whole. An
            unknown topic ID is used as the name of its topic.
        groups: Group IDs.
        transactional_id: Transactional ID, or None.
        resources: Names of config resources.
        request: The decoded request. None in logs of past requests.
    """

    api: ApiKey
    version: int
    client_id: str
    partitions: dict[str, set[int]]
    groups: frozenset[str]
    transactional_id: str | None
    resources: frozenset[str] = frozenset()
    request: Any = None

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
    """Criteria of the requests that a fault hits; None or an empty set matches any request."""

    apis: frozenset[ApiKey] = frozenset()
    topic: str | None = None
    partitions: frozenset[int] = frozenset()
    group: str | None = None
    client_id: str | None = None
    transactional_id: str | None = None
    resource: str | None = None
    versions: range | None = None

    def matches(self, info: RequestInfo) -> bool:
        """Return True if the request meets all criteria."""
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
        """Return True if requests of this API can match."""
        return not self.apis or api in self.apis

    @property
    def filters_partitions(self) -> bool:
        """True if only requests that name certain topics or partitions match."""
        return self.topic is not None or bool(self.partitions)

    def _concerns_partitions(self, info: RequestInfo) -> bool:
        return not self.filters_partitions or any(
            self.covers(topic, partition)
            for topic, partitions in info.partitions.items()
            for partition in partitions or (None,)
        )

    def covers(self, topic: str, partition: int | None) -> bool:
        """Return True if a row about this partition matches; None stands for the whole topic."""
        return self.topic in (None, topic) and (
            not self.partitions or partition is None or partition in self.partitions
        )

    def covers_group(self, group: str) -> bool:
        """Return True if a row about this group matches."""
        return self.group in (None, group)

    def covers_resource(self, resource: str) -> bool:
        """Return True if a row about the configs of this resource matches."""
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


# Function of a test that handles a request or, with `at="after"`, its response. It returns None to
# leave the message unchanged, or a response. It may be async.
Hook = Callable[[Any, RequestInfo], Any]


@dataclass(slots=True, eq=False)
class Rule(AnyRule):
    """One armed fault of the Kafka API.

    Attributes:
        target: Criteria of the requests.
        code: Error of the response.
        top_level: Put the error into the top-level field of the response, not into its rows.
        bit: Number of the bit that `corrupt_batch` flips.
        hook: Function of the test to call.
        until: API whose request ends the fault for a client that was hit.
        releases_all: A request of `until` also ends the fault for a client that was not hit.
        when: Called with each request that meets the other criteria; returns True to match.
        clients: Client IDs that were hit.
        released: Client IDs that have sent a request of `until`.
    """

    target: Target
    code: ErrorCode = ErrorCode.NONE
    top_level: bool = False
    bit: int = 0
    hook: Hook | None = None
    until: ApiKey | None = None
    releases_all: bool = False
    when: Callable[[Any], bool] | None = None
    clients: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)

    def reset_counts(self) -> None:
        AnyRule.reset_counts(self)
        self.clients.clear()
        self.released.clear()

    def may_hit(self, client_id: str) -> bool:
        """Return True if a request of this client can still be hit."""
        return not self.is_used_up and client_id not in self.released

    def release_client(self, info: RequestInfo) -> None:
        """End the fault for a client if this request is of the API `until`."""
        if info.api is self.until and (self.releases_all or info.client_id in self.clients):
            self.released.add(info.client_id)

    def try_hit(self, info: RequestInfo) -> bool:
        """Count a request if it matches. Return True if the fault hits the request."""
        if not self.may_hit(info.client_id) or not self.target.matches(info):
            return False
        if self.when is not None and not self.when(info.request):
            return False
        if not self.count_match():
            return False
        self.clients.add(info.client_id)
        return True

    def __str__(self) -> str:
        effect = self.code.name if self.effect is Effect.ERROR else self.effect.value
        return f"{effect} for {self.target}"


class Hit(NamedTuple):
    """A hit of a rule. `at_ms` is the time of the log clock in ms."""

    at_ms: int
    rule: Rule
    info: RequestInfo


class Faults:
    """The rules of one broker, its recent requests, and its API version limits.

    Attributes:
        rules: Armed rules; the first matching rule with an effect hits a request.
        hits: Recent hits.
        now_ms: Returns the time of hits, in ms.
        log: Recent requests of clients.
        counts: Number of requests by API and client ID.
        calls: Recent calls of the schema registry.
        kit_apis: APIs of requests of the test kit, which no fault hits.
        limits: Version ranges that restrict the APIs.
        failures: Exceptions of functions of the test.
        changed: Called after each request, to notify waits.
    """

    def __init__(self) -> None:
        self.rules: list[AnyRule] = []
        self.hits: deque[Hit] = deque(maxlen=REQUESTS_KEPT)
        self.now_ms: Callable[[], int] = lambda: 0
        self.log: deque[RequestInfo] = deque(maxlen=REQUESTS_KEPT)
        self.counts: Counter[tuple[ApiKey, str]] = Counter()
        self.calls: deque[Call] = deque(maxlen=REQUESTS_KEPT)
        self.kit_apis: set[ApiKey] = set()
        self.limits: Limits = {}
        self.failures: list[Exception] = []
        self.changed: Callable[[], None] = lambda: None

    def arm(self, rule: AnyRule) -> None:
        self.rules.append(rule)

    def disarm(self, rule: AnyRule) -> None:
        """Remove a rule if it is armed; its hits stay in `hits`."""
        if rule in self.rules:
            self.rules.remove(rule)

    def clear_history(self) -> None:
        """Forget past requests and hits."""
        self.hits.clear()
        self.log.clear()
        self.calls.clear()
        self.counts.clear()
        self.kit_apis.clear()

    def within_limits(self, apis: Mapping[int, Api]) -> Mapping[int, Api]:
        """Return the APIs and versions that clients may use."""
        return apply_limits(apis, self.limits) if self.limits else apis

    def match_request(self, info: RequestInfo) -> Rule | None:
        """Record a request, and return the first rule that hits it with an effect.

        Rules that corrupt batches are skipped; `match_batch` checks them when the batches are
        known.
        """
        self.log.append(info._replace(request=None))
        self.counts[info.api, info.client_id] += 1
        rules = self._request_rules
        for rule in rules:
            rule.release_client(info)
        return self._first_hit(rules, info)

    @property
    def _request_rules(self) -> list[Rule]:
        return [rule for rule in self.rules if isinstance(rule, Rule)]

    def match_call(self, call: Call) -> CallRule | None:
        """Record a schema registry call, and return the first rule that hits it with an effect."""
        self.calls.append(call)
        rules = (rule for rule in self.rules if isinstance(rule, CallRule) and rule.try_hit(call))
        found = next((rule for rule in rules if rule.effect is not Effect.PASS), None)
        self.changed()
        return found

    def rules_until(self, rule: Rule) -> list[Rule]:
        """Return the rules that a request has passed when `rule` hits it, including `rule`."""
        rules = self._request_rules
        return rules[: rules.index(rule) + 1] if rule in rules else rules

    def match_after(self, info: RequestInfo, passed: Sequence[Rule]) -> Rule | None:
        """Return the next rule with an effect, after a hook has passed the request on.

        Args:
            info: The request.
            passed: Rules that the request had passed before the hook, which may have disarmed some.
        """
        return self._first_hit([each for each in self._request_rules if each not in passed], info)

    def match_batch(self, info: RequestInfo, has_records: Callable[[Rule], bool]) -> Rule | None:
        """Return the first rule that corrupts a batch of this request or of its response."""
        rules = (rule for rule in self._request_rules if rule.effect is Effect.CORRUPT_BATCH)
        taken = (rule for rule in rules if has_records(rule) and self._try_hit(rule, info))
        return next(taken, None)

    def _first_hit(self, rules: Iterable[Rule], info: RequestInfo) -> Rule | None:
        candidates = (rule for rule in rules if rule.effect is not Effect.CORRUPT_BATCH)
        taken = (rule for rule in candidates if self._try_hit(rule, info))
        found = next((rule for rule in taken if rule.effect is not Effect.PASS), None)
        self.changed()
        return found

    def _try_hit(self, rule: Rule, info: RequestInfo) -> bool:
        try:
            is_hit = rule.try_hit(info)
        except Exception as error:  # noqa: BLE001 (`when` is a function of the test)
            self.failures.append(error)
            return False
        if is_hit:
            self.hits.append(Hit(self.now_ms(), rule, info._replace(request=None)))
            self.changed()
        return is_hit

    def corrupts(self, info: RequestInfo) -> bool:
        """Return True if a rule may corrupt a batch of this request or of its response."""
        return any(
            rule.effect is Effect.CORRUPT_BATCH
            and rule.may_hit(info.client_id)
            and rule.target.matches(info)
            for rule in self._request_rules
        )

    def needs_partitions(self, client_id: str) -> bool:
        """Return True if a rule needs to know the partitions of this client's fetch requests."""
        return any(
            rule.may_hit(client_id)
            and rule.target.has_api(ApiKey.FETCH)
            and (rule.target.filters_partitions or rule.effect is Effect.ERROR)
            for rule in self._request_rules
        )

    def unfired(self) -> list[AnyRule]:
        """Return the rules that have hit nothing and are not optional."""
        return [rule for rule in self.rules if not rule.hits and not rule.may_stay_unfired]

    def report(self, rule: AnyRule) -> str:
        """Describe the hits of a rule, and the requests that are most similar to its target."""
        return f"{rule} hit {rule.hits} requests; {'; '.join(self.near_misses(rule))}"

    def near_misses(self, rule: AnyRule) -> list[str]:
        """Return lines that describe the requests that are most similar to the target of a rule."""
        if rule.calls:
            return [f"saw {rule.calls} such requests, the fault hits number {rule.first}"]
        if isinstance(rule, CallRule):
            return self._near_calls(rule)
        assert isinstance(rule, Rule)
        # The thread of the broker adds requests in the meantime.
        same = [info for info in self.log.copy() if rule.target.has_api(info.api)]
        if rule.effect is Effect.CORRUPT_BATCH and any(map(rule.target.matches, same)):
            return ["saw such requests, but none of them has a batch"]
        counted = Counter(str(info) for info in same).most_common(SIMILAR_SHOWN)
        if counted:
            return [f"saw {count} x {info}" for info, count in counted]
        if any(map(rule.target.has_api, self.kit_apis.copy())):
            return ["saw such requests only from calls of the test kit, which no fault hits"]
        return ["saw no such request"]

    def _near_calls(self, rule: CallRule) -> list[str]:
        same = [str(call) for call in self.calls.copy() if rule.target.has_method(call.method)]
        counted = Counter(same).most_common(SIMILAR_SHOWN)
        return [f"saw {count} x {call}" for call, count in counted] or ["saw no such call"]


# Criteria of a target whose fields only some APIs have.
CRITERIA = ("topic", "partitions", "group", "transactional_id", "resource")


# Request fields that contain a transactional ID.
TRANSACTIONAL_IDS = ("transactional_id", "v3_and_below_transactional_id")


def criteria_of(api: ApiKey) -> set[str]:
    """Return the criteria for which requests of an API have a field."""
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
    """Return the field names of a message."""
    return {each.name for each in fields(message)}


def request_info(
    api: ApiKey, version: int, client_id: str | None, request: Any, name_of: NameOf
) -> RequestInfo:
    """Extract the parts of a decoded request that rules compare.

    Args:
        api: API key.
        version: API version.
        client_id: Client ID, or None.
        request: Decoded request.
        name_of: Returns the name of a topic ID; an empty string if the ID is unknown.
    """
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
