"""Audits for tests: they run to the end in one call, and raise with the findings in words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import trio

from kbroker.client.cluster import open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.errors import first_error
from kbroker.client.security import security_of

from .findings import AuditError, Findings
from .identity import Identity
from .pair import PairReport, compare_contents, compare_offsets
from .reader import Source
from .topic import TopicReport, audit_topic

Settings = Mapping[str, str]
NO_SETTINGS: Settings = MappingProxyType({})
Report = TypeVar("Report", TopicReport, PairReport)


def check_topic(
    bootstrap: str,
    topic: str,
    *,
    settings: Settings = NO_SETTINGS,
    unique: str | None = None,
    committed: bool = True,
    partitions: Collection[int] = (),
) -> TopicReport:
    """Audit a topic.

    Parameters: `unique` is what identifies a record, as in `Identity.parse`; `settings` are Kafka's own
    of a client about TLS and its login, such as ``security.protocol``.

    Raises AuditError when something is found, ClientError or KafkaError when it cannot be read.
    Not for use inside of trio: call it in a thread there.
    """
    identity = None if unique is None else Identity.parse(unique)

    async def work(source: Source) -> TopicReport:
        return await audit_topic(source, unique=identity)

    return _checked(bootstrap, settings, topic, committed, partitions, work)


def check_same(
    bootstrap: str,
    topic: str,
    other: str,
    *,
    settings: Settings = NO_SETTINGS,
    by: str = "offset",
    distinct: bool = False,
    committed: bool = True,
) -> PairReport:
    """Compare two topics of a cluster by ``offset``, or by an identity as in `Identity.parse`.

    Raises as `check_topic`.
    """

    async def work(source: Source) -> PairReport:
        right = Source(source.cluster, other, committed)
        if by == "offset":
            return await compare_offsets(source, right)
        return await compare_contents(source, right, Identity.parse(by), distinct=distinct)

    return _checked(bootstrap, settings, topic, committed, (), work)


def check_lake(
    bootstrap: str,
    topic: str,
    lake: Path,
    *,
    settings: Settings = NO_SETTINGS,
    committed: bool = True,
    allow_lag: bool = False,
) -> PairReport:
    """Compare a topic with its lake. Raises as `check_topic`."""
    from .lake import compare_lake

    async def work(source: Source) -> PairReport:
        return await compare_lake(source, lake, allow_lag=allow_lag)

    return _checked(bootstrap, settings, topic, committed, (), work)


def _checked(
    bootstrap: str,
    settings: Settings,
    topic: str,
    committed: bool,
    partitions: Collection[int],
    work: Callable[[Source], Awaitable[Report]],
) -> Report:
    """Run an audit; raises AuditError when something is found, BadSecurity for bad settings."""
    security = security_of(settings)
    endpoints = [Endpoint.parse(address) for address in bootstrap.split(",")]

    async def main() -> Report:
        async with open_cluster(endpoints, security=security) as cluster:
            return await work(Source(cluster, topic, committed, partitions))

    try:
        report = trio.run(main)
    except ExceptionGroup as group:
        raise first_error(group) from None
    findings: Findings = report.findings
    if findings:
        raise AuditError(findings)
    return report
