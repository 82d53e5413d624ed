"""A fault as a test arms it: a sentence of what, when and how often."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Self

from kbroker.handlers.registry import load_apis
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey

from .any_fault import AnyFault, Waited
from .names import api_key, error_named, format_versions, is_after
from .registry_fault import RegistryFault, new_call_rule
from .rules import CRITERIA, Faults, Hook, Rule, Target, criteria_of, field_names
from .schedule import AnyRule, Effect

WITH_BATCHES = {ApiKey.PRODUCE, ApiKey.FETCH}
BIT_MAX = 8 * 100 * 1024 * 1024 - 1
"""No request has more bits than this: socket.request.max.bytes is 100 MiB."""


NO_REGISTRY = "there is no schema registry: make the broker with schema_registry=True"


class UnfiredFault(AssertionError):
    """A fault was armed and hit nothing: the test did not test what it says."""


class Fault(AnyFault[Rule, Waited]):
    """One armed fault for Kafka's requests; see `Arming.fault`."""

    def until(self, api: str) -> Self:
        """Hit all matching requests of a client until it has sent a request of `api` after the first
        hit.

        `until("Metadata")` is a leader that has moved: who looks again finds it.
        """
        self._rule.until = api_key(api)
        return self.always()

    def throttle(self, milliseconds: float) -> Self:
        """Answer, and tell the client to pause (KIP-219)."""
        self._check("milliseconds", milliseconds, 0)
        return self._does(Effect.THROTTLE, milliseconds=milliseconds)

    def truncate_response(self) -> Self:
        """Do the work, send the first half of the response, then close the connection."""
        return self._does(Effect.TRUNCATE_RESPONSE)

    def duplicate_response(self) -> Self:
        """Send the response twice."""
        return self._does(Effect.DUPLICATE_RESPONSE)

    def corrupt_batch(self, bit: int = 0) -> Self:
        """Flip a bit of the records that a Produce brings or a Fetch gets.

        Bits are counted from the end of the batch's header; behind the last one they begin again.
        Requests and answers without records do not count.
        """
        self._check("bit", bit, 0, BIT_MAX)
        return self._does(Effect.CORRUPT_BATCH, bit=bit)

    def hook(self, function: Hook) -> Self:
        """Ask a function what to do; see `Arming.on`."""
        return self._does(Effect.HOOK, hook=function)

    def _check_effect(self) -> None:
        check_effect(self._rule)


class Arming(Generic[Waited]):
    """What a broker under test has to say about faults, whichever way it is called."""

    faults: Faults

    def wait_for_hits(self, rule: AnyRule, hits: int, timeout: float) -> Waited:
        """Wait until a fault has hit so many requests; its `wait` does the same."""
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
        """Arm a fault; what is called on it says when it hits and what it does.

        Parameters: `api` is named as in Kafka ("Produce"), or several, None for all; `error` is the
        name or number of the error to answer with, beside the rows of an answer if `top_level`;
        `topic` to `versions` narrow down which requests are meant (a topic may be named by an id
        that nobody has, `resource` is what the settings of a request belong to); `at` "after" does
        the work first. `when` gets each request that is meant so far, and says whether it is.

        Of several faults the first one that matches has the request; one that was given no effect
        counts it and leaves it to the others. Raises ValueError for names that do not exist.
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
        """Arm a fault of the schema registry; what is called on it says when it hits and what it does.

        Parameters: `method` is "POST" for instance, or several, None for all; `path` is that of the
        call ("/schemas/ids/*", where * stands for anything), `subject` the one that the call is about;
        `error` is the number to answer with, of which the first three digits are HTTP's status (503,
        40401); `at` "after" does the work first. Raises ValueError for what cannot be meant.
        """
        rule = new_call_rule(method, path=path, subject=subject, error=error, at=at)
        if not self.has_schema_registry:
            raise ValueError(NO_REGISTRY)
        self.faults.arm(rule)
        return RegistryFault(self.faults, rule, self.wait_for_hits)

    @property
    def has_schema_registry(self) -> bool:
        """Whether it serves schemas."""
        return False

    def on(self, api: str | Iterable[str] | None = None, **criteria: Any) -> Callable[[Hook], Hook]:
        """Call a function with each request of an API, and what is asked: `@kbroker.on("Fetch")`.

        It returns None to let the request pass to other faults and hooks, or the answer; with `at="after"` it gets the
        response, and returns None or another one. It may be async, to delay, and raises OSError to
        close the connection; whatever else it raises fails the test. It runs in the broker's
        thread, and what its client sends meanwhile waits. `criteria` are those of `fault`. Like a
        fault it must be called at least once; `fault(...).hook(function).always().optional()` need
        not be.
        """

        def install(function: Hook) -> Hook:
            self.fault(api, **criteria).hook(function).always()
            return function

        return install

    def disarm_faults(self) -> None:
        """Take all faults and hooks away, and forget what they did."""
        self.faults.rules.clear()
        self.faults.failures.clear()

    def check_faults(self) -> None:
        """Raise what a hook has raised, and UnfiredFault when a fault hit nothing that should."""
        check_faults(self.faults)


def check_faults(faults: Faults, unmet: Iterable[str] = ()) -> None:
    """See `Arming.check_faults`; `unmet` says what else has not happened."""
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
    """The rule that the words of a test mean. Raises ValueError, with what there is instead."""
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
    rule = Rule(target, after=is_after(at), top_level=top_level, when=when)
    if error is not None:
        rule.effect, rule.code = Effect.ERROR, error_named(error)
        check_effect(rule)
    return rule


def check_versions(target: Target) -> None:
    """Refuse versions in which nothing can be asked here. Raises ValueError."""
    wanted = target.versions
    if wanted is None:
        return
    served = {api.key: api.versions for api in load_apis().values()}
    if target.apis:
        served = {key: served[key] for key in sorted(target.apis) if key in served}
    for versions in served.values():
        if max(wanted.start, versions.start) < min(wanted.stop, versions.stop):
            return
    there_are = [f"{key.api_name} {format_versions(versions)}" for key, versions in served.items()]
    raise ValueError(
        f"no request has versions {format_versions(wanted)}; there are {', '.join(there_are)}"
    )


def check_target(target: Target) -> None:
    """Refuse criteria that no request of the APIs that are meant could meet. Raises ValueError."""
    apis = sorted(target.apis)
    said = {name for api in apis for name in criteria_of(api)}
    asked = {name for name in CRITERIA if getattr(target, name)}
    if apis and not asked <= said:
        names = " or ".join(api.api_name for api in apis)
        missing = ", ".join(sorted(asked - said))
        known = ", ".join(sorted({"client_id", *said}))
        raise ValueError(
            f"a request of {names} does not say its {missing}, so this fault could hit nothing; "
            f"there is {known}"
        )


def check_effect(rule: Rule) -> None:
    """Refuse what a rule could not do to any request that it is for. Raises ValueError."""
    apis = rule.target.apis
    names = ", ".join(key.api_name for key in sorted(apis))
    if rule.effect is Effect.CORRUPT_BATCH and apis and not apis & WITH_BATCHES:
        raise ValueError(f"there are batches in Produce and Fetch, not in {names}")
    if (
        rule.effect is Effect.THROTTLE
        and apis
        and not any("throttle_time_ms" in _answered(key) for key in apis)
    ):
        raise ValueError(f"the answer to {names} cannot say how long to pause")
    if rule.top_level and not apis:
        raise ValueError("top_level=True needs the API that is meant")
    for key in apis if rule.top_level else ():
        if "error_code" not in _answered(key):
            raise ValueError(f"the answer to {key.api_name} has errors in its rows only")


def _answered(key: ApiKey) -> set[str]:
    """The fields that the answer to an API has beside its rows."""
    return field_names(messages.response_class(key))
