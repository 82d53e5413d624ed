"""Faults of the Kafka API: the criteria of their requests, their schedule and their effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Self

from kbroker.handlers.registry import load_apis
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

from .any_fault import AnyFault, Waited
from .names import api_key, format_versions, is_applied_after_handling, parse_error
from .registry_fault import RegistryFault, new_call_rule
from .rules import CRITERIA, Faults, Hook, Rule, Target, criteria_of, field_names
from .schedule import AnyRule, Effect

# APIs whose requests or responses contain record batches.
WITH_BATCHES = {ApiKey.PRODUCE, ApiKey.FETCH}
# Highest bit number of a request: socket.request.max.bytes is 100 MiB by default.
BIT_MAX = 8 * 100 * 1024 * 1024 - 1


# Error message of operations on a schema registry.
NO_REGISTRY = "the broker has no schema registry; create it with schema_registry=True"


class UnfiredFault(AssertionError):
    """A fault of the test has hit no request, so the test did not test the failure."""


class Fault(AnyFault[Rule, Waited]):
    """One armed fault of the Kafka API; see `Arming.fault`."""

    def until(self, api: str) -> Self:
        """Hit all matching requests of a client until it sends a request of another API.

        `until("Metadata")` simulates a moved leader: a client fails until it refreshes its metadata.
        Requests of that API before the client's first hit do not count.

        Args:
            api: API name.

        Returns:
            This fault.

        Raises:
            ValueError: The API does not exist.
        """
        self._rule.until = api_key(api)
        return self.always()

    def throttle(self, milliseconds: float) -> Self:
        """Set the throttle time of the response, so that the client pauses (KIP-219).

        Args:
            milliseconds: Throttle time in ms, at least 0.

        Returns:
            This fault.

        Raises:
            ValueError: `milliseconds` is negative, the response has no throttle time, or the fault
                already has an effect. The fault is disarmed.
        """
        self._check_number("milliseconds", milliseconds, 0)
        return self._set_effect(Effect.THROTTLE, milliseconds=milliseconds)

    def truncate_response(self) -> Self:
        """Handle the request, send the first half of the response, then close the connection.

        Returns:
            This fault.

        Raises:
            ValueError: The fault already has an effect. The fault is disarmed.
        """
        return self._set_effect(Effect.TRUNCATE_RESPONSE)

    def duplicate_response(self) -> Self:
        """Send the response twice.

        Returns:
            This fault.

        Raises:
            ValueError: The fault already has an effect. The fault is disarmed.
        """
        return self._set_effect(Effect.DUPLICATE_RESPONSE)

    def corrupt_batch(self, bit: int = 0) -> Self:
        """Flip one bit of the records of a Produce request or Fetch response.

        Requests and responses without records do not count as matches.

        Args:
            bit: Number of the bit, counted from the end of the batch header, modulo the size of the
                records.

        Returns:
            This fault.

        Raises:
            ValueError: `bit` is out of range, the APIs have no batches, or the fault already has an
                effect. The fault is disarmed.
        """
        self._check_number("bit", bit, 0, BIT_MAX)
        return self._set_effect(Effect.CORRUPT_BATCH, bit=bit)

    def hook(self, function: Hook) -> Self:
        """Call a function for each hit; see `Arming.on`.

        Args:
            function: Gets the request or response, and the `RequestInfo` of the request.

        Returns:
            This fault.

        Raises:
            ValueError: The fault already has an effect. The fault is disarmed.
        """
        return self._set_effect(Effect.HOOK, hook=function)

    def _check_effect(self) -> None:
        check_effect(self._rule)


class Arming(Generic[Waited]):
    """Methods of a broker under test that arm and disarm faults, for sync and async code."""

    faults: Faults

    def wait_for_hits(self, rule: AnyRule, hits: int, timeout: float) -> Waited:
        """Wait until a fault has hit a number of requests; `AnyFault.wait` does the same.

        Args:
            rule: Rule of the fault.
            hits: Number of hits to wait for.
            timeout: Maximum seconds to wait.

        Raises:
            WaitTimeout: The fault has fewer hits; the message lists the most similar requests.
        """
        raise NotImplementedError

    def fault(
        self,
        api: str | Iterable[str] | None = None,
        *,
        error: str | int | None = None,
        topic: str | None = None,
        partition: int | Iterable[int] | None = None,
        group: str | None = None,
        client_id: str | None = None,
        transactional_id: str | None = None,
        resource: str | None = None,
        versions: range | int | None = None,
        when: Callable[[Any], bool] | None = None,
        at: str = "before",
        top_level: bool = False,
    ) -> Fault[Waited]:
        """Arm a fault. The methods of the returned object set its schedule and effect.

        If several faults match a request, the fault that was armed first hits the request. A fault
        without an effect only counts the request, and later faults can hit it.

        Args:
            api: API name as in Kafka ("Produce"), or several; None matches all APIs.
            error: Name or number of the error in the response.
            topic: Match requests that name this topic. An unknown topic ID is matched as text.
            partition: Match requests that name this partition, or one of several.
            group: Match requests that name this group.
            client_id: Match requests of clients with this client ID.
            transactional_id: Match requests that name this transactional ID.
            resource: Match config requests for this resource.
            versions: Match requests of this API version, or of a range of versions.
            when: Called with each request that meets the other criteria; returns True to match.
            at: "before" to inject the fault instead of handling the request; "after" to handle the
                request first.
            top_level: Put the error into the top-level error field of the response, not into its
                rows.

        Returns:
            The armed fault.

        Raises:
            ValueError: A name does not exist, or no request can meet the criteria.
        """
        rule = new_rule(
            api,
            error=error,
            at=at,
            top_level=top_level,
            versions=versions,
            when=when,
            topic=topic,
            partition=partition,
            group=group,
            client_id=client_id,
            transactional_id=transactional_id,
            resource=resource,
        )
        self.faults.arm(rule)
        return Fault(self.faults, rule, self.wait_for_hits)

    def registry_fault(
        self,
        method: str | Iterable[str] | None = None,
        *,
        path: str | None = None,
        subject: str | None = None,
        error: int | None = None,
        at: str = "before",
    ) -> RegistryFault[Waited]:
        """Arm a fault of the schema registry. The methods of the returned object set its schedule.

        Args:
            method: HTTP method ("POST"), or several; None matches all methods.
            path: Path to match, for example "/schemas/ids/*"; "*" matches anything.
            subject: Subject to match, in the path or in the query.
            error: Error of the response: an HTTP status (503), or an HTTP status followed by two
                digits (40401).
            at: "before" to inject the fault instead of handling the call; "after" to handle the
                call first.

        Returns:
            The armed fault.

        Raises:
            ValueError: An argument is invalid, or the broker has no schema registry.
        """
        rule = new_call_rule(method, path=path, subject=subject, error=error, at=at)
        if not self.has_schema_registry:
            raise ValueError(NO_REGISTRY)
        self.faults.arm(rule)
        return RegistryFault(self.faults, rule, self.wait_for_hits)

    @property
    def has_schema_registry(self) -> bool:
        """True if the broker has a schema registry."""
        return False

    def on(self, api: str | Iterable[str] | None = None, **criteria: Any) -> Callable[[Hook], Hook]:
        """Decorate a function to call it for each matching request: `@kbroker.on("Fetch")`.

        The function gets the request and its `RequestInfo`. It returns a response to send, or None
        to pass the request on to other faults and the broker. With `at="after"` the function gets
        the response, and returns None or another response. The function may be async, to delay the
        request.

        If the function raises OSError, the connection is closed. Any other exception fails the
        test. The function runs in the thread of the broker, and later requests of the client wait
        for it. If the function is never called, the test fails. For a function that need not be
        called, use `fault(...).hook(function).always().optional()`.

        Args:
            api: API name, or several; None matches all APIs.
            criteria: Further arguments of `fault`.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            ValueError: When the decorator is applied, for invalid criteria; see `fault`.
        """

        def install(function: Hook) -> Hook:
            self.fault(api, **criteria).hook(function).always()
            return function

        return install

    def disarm_faults(self) -> None:
        """Remove all faults and hooks, and forget the exceptions of hooks."""
        self.faults.rules.clear()
        self.faults.failures.clear()

    def check_faults(self) -> None:
        """Check that each fault has hit something.

        Raises:
            UnfiredFault: A fault that is not optional has hit nothing.
            Exception: The first exception of a hook.
        """
        check_faults(self.faults)


def check_faults(faults: Faults, unmet: Iterable[str] = ()) -> None:
    """Check that each fault has hit something; see `Arming.check_faults`.

    Args:
        faults: Faults to check.
        unmet: Descriptions of other expected events that have not happened.
    """
    if faults.failures:
        raise faults.failures[0]
    reports = [
        f"{rule} never fired: {'; '.join(faults.near_misses(rule))}" for rule in faults.unfired()
    ]
    reports += unmet
    if reports:
        raise UnfiredFault("\n".join(reports))


def new_rule(
    api: str | Iterable[str] | None,
    *,
    error: str | int | None = None,
    at: str = "before",
    top_level: bool = False,
    versions: range | int | None = None,
    when: Callable[[Any], bool] | None = None,
    partition: int | Iterable[int] | None = None,
    **criteria: Any,
) -> Rule:
    """Create the rule of a fault from the arguments of `Arming.fault`.

    Raises:
        ValueError: A name does not exist, or no request can meet the criteria.
    """
    if isinstance(versions, int):
        versions = range(versions, versions + 1)
    names = [api] if isinstance(api, str) else api or ()
    partitions = [partition] if isinstance(partition, int) else partition or ()
    target = Target(
        frozenset(map(api_key, names)),
        partitions=frozenset(partitions),
        versions=versions,
        **criteria,
    )
    check_versions(target)
    check_target(target)
    rule = Rule(target, after=is_applied_after_handling(at), top_level=top_level, when=when)
    if error is not None:
        rule.effect, rule.code = Effect.ERROR, parse_error(error)
        check_effect(rule)
    return rule


def check_versions(target: Target) -> None:
    """Check that the broker serves one of the versions.

    Raises:
        ValueError: It serves none of them.
    """
    wanted = target.versions
    if wanted is None:
        return
    served = {api.key: api.versions for api in load_apis().values()}
    if target.apis:
        served = {key: served[key] for key in sorted(target.apis) if key in served}
    for versions in served.values():
        if max(wanted.start, versions.start) < min(wanted.stop, versions.stop):
            return
    valid = [f"{key.api_name} {format_versions(versions)}" for key, versions in served.items()]
    raise ValueError(
        f"no request has versions {format_versions(wanted)} (valid: {', '.join(valid)})"
    )


def check_target(target: Target) -> None:
    """Check that requests of the APIs can meet all criteria.

    Raises:
        ValueError: The requests do not have the field of a criterion.
    """
    apis = sorted(target.apis)
    present = {name for api in apis for name in criteria_of(api)}
    wanted = {name for name in CRITERIA if getattr(target, name)}
    if apis and not wanted <= present:
        names = " or ".join(api.api_name for api in apis)
        missing = ", ".join(sorted(wanted - present))
        known = ", ".join(sorted({"client_id", *present}))
        raise ValueError(
            f"a request of {names} does not have a {missing}, so this fault cannot hit anything "
            f"(valid: {known})"
        )


def check_effect(rule: Rule) -> None:
    """Check that the effect is possible for the APIs of a rule.

    Raises:
        ValueError: The effect is not possible.
    """
    apis = rule.target.apis
    names = ", ".join(key.api_name for key in sorted(apis))
    if rule.effect is Effect.CORRUPT_BATCH and apis and not apis & WITH_BATCHES:
        raise ValueError(f"cannot corrupt a batch of {names} (valid: Produce, Fetch)")
    if (
        rule.effect is Effect.THROTTLE
        and apis
        and not any("throttle_time_ms" in _response_fields(key) for key in apis)
    ):
        raise ValueError(f"cannot throttle {names}: the response has no throttle_time_ms")
    if rule.top_level and not apis:
        raise ValueError("top_level=True needs an API; add its name")
    for key in apis if rule.top_level else ():
        if "error_code" not in _response_fields(key):
            raise ValueError(
                f"top_level=True: the response of {key.api_name} has no top-level error; "
                "remove top_level"
            )


def _response_fields(key: ApiKey) -> set[str]:
    """Return the names of the top-level fields of the response of an API."""
    return field_names(messages.response_class(key))
