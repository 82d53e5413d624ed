"""Synchronous audits for tests, which raise an error that lists the findings."""

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

    This starts its own event loop: in trio code, call it in a thread.

    Args:
        bootstrap: Addresses of the brokers, as HOST:PORT separated by commas.
        topic: Name of the topic.
        settings: Security settings of the client, such as ``security.protocol``.
        unique: Identity by which records must be unique, as in `Identity.parse`.
        committed: Ignore records of aborted and open transactions.
        partitions: Partitions to audit; empty for all.

    Returns:
        The report.

    Raises:
        AuditError: The audit has findings.
        ClientError: The topic cannot be read.
        KafkaError: The broker returned an error.
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
    """Compare two topics of a cluster.

    Args:
        bootstrap: Addresses of the brokers, as HOST:PORT separated by commas.
        topic: Name of the first topic.
        other: Name of the second topic.
        settings: Security settings of the client.
        by: ``offset``, or an identity as in `Identity.parse`.
        distinct: With an identity: ignore how often a record occurs.
        committed: Ignore records of aborted and open transactions.

    Returns:
        The report.

    Raises:
        AuditError: The topics differ.
        ClientError: A topic cannot be read.
        KafkaError: The broker returned an error.
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
    """Compare a topic with its lake.

    Args:
        bootstrap: Addresses of the brokers, as HOST:PORT separated by commas.
        topic: Name of the topic.
        lake: Directory of the lake.
        settings: Security settings of the client.
        committed: Ignore records of aborted and open transactions.
        allow_lag: Do not report records after the last one in the lake.

    Returns:
        The report.

    Raises:
        AuditError: The lake differs.
        ClientError: The topic or the lake cannot be read.
        KafkaError: The broker returned an error.
    """
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
    """Run an audit. Raises AuditError for findings, BadSecurity for invalid settings."""
    security = security_of(settings)
    endpoints = Endpoint.parse_bootstrap(bootstrap)

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
