"""The audit log: its contents and fields, and that clients can neither flood nor forge it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    DeleteAclsRequest,
)
from kbroker.runtime import log_output
from kbroker.runtime.log_output import JsonFormatter, TextFormatter, set_up_logging
from kbroker.security.acls import Client, Resource, Verdict
from kbroker.security.audit import CLIENTS_MAX, EVENTS_PER_CLIENT_MAX, Audit

from ..cli.test_serve import serving
from ..wire import Topic, batch, connected, create_topic, produce, request
from .test_access import ALLOW, AUTHORIZER, READ, TOPIC, USERS, WRITE, acl_for, grant, guarded, user
from .test_acls import client
from .test_login import authenticate, handshake

EVIL = "evil\r\n12:00:00 INFO kbroker.audit: allowed: everything \x1b[2J\u2028"
DENIED, ALLOWED = Verdict(False), Verdict(True, is_super=True)


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Lines(logging.Handler):
    """A handler that collects log records with their fields."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [each.getMessage() for each in self.records]

    @property
    def fields(self) -> list[dict[str, Any]]:
        return [each.fields for each in self.records]  # type: ignore[attr-defined]


@pytest.fixture
def lines(restored_logging: None) -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger("kbroker.audit")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


async def eventually(holds: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not holds():  # noqa: ASYNC110  # there is no event to wait for
            await trio.sleep(0.02)


def decided(
    audit: Audit,
    name: str = "orders",
    source: Client | None = None,
    verdict: Verdict = DENIED,
    client_id: str = "me",
) -> None:
    level = logging.DEBUG if verdict.allowed else logging.INFO
    resource = Resource(TOPIC, name)
    audit.log_decision(
        *(verdict, source or client(), WRITE, resource, level),
        api="Produce",
        version=9,
        client_id=client_id,
    )


def test_audit_record_contains_sentence_and_fields(lines: Lines) -> None:
    decided(Audit(Clock()))
    decided(Audit(Clock()), verdict=ALLOWED)
    assert lines.texts == [
        (
            "denied: User:alice at 10.0.0.1, WRITE on topic orders, for Produce 9 of client 'me' "
            "(the resource has no ACL)"
        )
    ]
    assert lines.fields == [
        {
            "outcome": "denied",
            "principal": "User:alice",
            "host": "10.0.0.1",
            "operation": "WRITE",
            "resource_type": "TOPIC",
            "resource": "orders",
            "rule": "the resource has no ACL",
            "api": "Produce",
            "version": 9,
            "client_id": "me",
        }
    ]
    event = json.loads(JsonFormatter().format(lines.records[0]))
    assert (event["logger"], event["level"]) == ("kbroker.audit", "info")
    assert event.items() >= lines.fields[0].items()


def test_debug_level_logs_every_event(lines: Lines) -> None:
    logging.getLogger("kbroker.audit").setLevel(logging.DEBUG)
    audit = Audit(Clock())
    for _ in range(3):
        decided(audit)
        decided(audit, verdict=ALLOWED)
    assert [each["outcome"] for each in lines.fields] == ["denied", "allowed"] * 3
    assert [each.levelname for each in lines.records[:2]] == ["INFO", "DEBUG"]


def test_repeated_event_is_counted_and_summarized(lines: Lines) -> None:
    """The counts are logged after the window ends, or with the first event of the next window."""
    clock, began = Clock(), []
    audit = Audit(clock, lambda: began.append(clock.now))
    for _ in range(1000):
        decided(audit)
    decided(audit, "others")
    assert len(lines.texts) == 2
    assert began == [100.0]
    clock.now += 1
    decided(audit)
    assert lines.texts[2].startswith("999 times more, denied: User:alice at 10.0.0.1, WRITE on")
    assert lines.fields[2] == {**lines.fields[0], "count": 999}
    assert lines.texts[3] == lines.texts[0]
    audit.log_counts()
    assert len(lines.texts) == 4  # no new counts
    decided(audit)
    decided(audit)
    audit.log_counts()
    assert lines.fields[-1]["count"] == 1
    assert began == [100.0, 101.0]


def test_many_distinct_events_are_bounded_per_client(lines: Lines) -> None:
    """Memory is bounded too, and a noisy client does not hide denials of other clients."""
    audit = Audit(Clock())
    for number in range(10_000):
        decided(audit, f"t{number}")
    decided(audit, "secret", client("bob"))
    assert len(lines.texts) == EVENTS_PER_CLIENT_MAX + 1
    assert lines.fields[-1]["principal"] == "User:bob"
    for number in range(1000):
        for topic in range(30):
            decided(audit, f"t{topic}", client("alice", f"10.1.{number >> 8}.{number & 255}"))
    kept = (
        len(audit._logged)
        + len(audit._repeated)
        + len(audit._logged_by_client)
        + len(audit._suppressed)
    )
    assert kept <= 2 * EVENTS_PER_CLIENT_MAX * CLIENTS_MAX + 2 * CLIENTS_MAX + 1
    logged = len(lines.texts)
    assert logged <= EVENTS_PER_CLIENT_MAX * CLIENTS_MAX
    audit.log_counts()
    assert sum(each.get("count", 1) for each in lines.fields) == 10_000 + 1 + 30_000
    assert not audit._logged
    assert "9980 more events of User:alice at 10.0.0.1 were not logged one by one" in lines.texts


def test_long_names_are_truncated(lines: Lines) -> None:
    audit = Audit(Clock())
    decided(audit, "x" * 30_000, client("y" * 30_000))
    audit.log_authentication_failure("10.0.0.1", "L", "PLAIN", "z" * 30_000, "why")
    for record in lines.records:
        assert len(JsonFormatter().format(record)) < 3000
    assert lines.fields[0]["resource"] == "x" * 256 + "... (30000 characters)"


@pytest.mark.parametrize("formatter", [TextFormatter("%(message)s"), JsonFormatter(), None])
def test_names_cannot_forge_log_lines(lines: Lines, formatter: logging.Formatter | None) -> None:
    """The formatter None does not escape names itself."""
    audit = Audit(Clock())
    decided(audit, EVIL, client(EVIL, EVIL), client_id=EVIL)
    audit.log_authentication_failure("10.0.0.1", "L", EVIL, EVIL, EVIL)
    audit.log_change(client(EVIL), EVIL, user=EVIL)
    for record in lines.records:
        text = (formatter or logging.Formatter("%(message)s")).format(record)
        assert text.isprintable()
        assert "evil" in text
    assert len(lines.records) == 3


async def test_authentications_and_changes_are_logged(lines: Lines) -> None:
    logging.getLogger("kbroker.audit").setLevel(logging.DEBUG)
    async with guarded() as broker:
        async with connected(broker.endpoint) as wire:
            await handshake(wire, "PLAIN")
            await authenticate(wire, b"\0alice\0wrong")
        async with connected(broker.endpoint) as wire:
            await handshake(wire, "GSSAPI")
        await eventually(lambda: len(lines.records) >= 2)
        async with user(broker, "admin") as admin:
            await grant(admin, acl_for(TOPIC, READ, "orders"))
            remove = DeleteAclsRequest.Filter(
                resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
            )
            await admin.ask(ApiKey.DELETE_ACLS, 3, DeleteAclsRequest(filters=[remove]))
            cls = AlterUserScramCredentialsRequest
            row = cls.Upsertion(
                name="dave", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"hash"
            )
            await admin.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, cls(upsertions=[row]))
            deletion = cls.Deletion(name="dave", mechanism=1)
            await admin.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, cls(deletions=[deletion]))
    somebody = "authentication failed: client at 127.0.0.1"
    guarded_one = "listener SASL_PLAINTEXT"
    logged = [
        (each.levelname, text)
        for each, text in zip(lines.records, lines.texts, strict=True)
        if each.levelname == "INFO" or "authenticated" in text
    ]
    admin_is = "User:admin at 127.0.0.1"
    assert logged == [
        (
            "INFO",
            f"{somebody} as 'alice', by PLAIN at {guarded_one}: the user or the password is wrong",
        ),
        (
            "INFO",
            f"{somebody}, by no mechanism at {guarded_one}: unsupported mechanism 'GSSAPI'",
        ),
        ("DEBUG", f"authenticated: {admin_is}, by PLAIN at listener SASL_PLAINTEXT"),
        ("INFO", f"changed: {admin_is}: ACL added: ALLOW User:alice READ on topic orders from *"),
        ("INFO", f"changed: {admin_is}: ACL removed: ALLOW User:alice READ on topic orders from *"),
        ("INFO", f"changed: {admin_is}: password of SCRAM-SHA-256 set for dave"),
        ("INFO", f"changed: {admin_is}: password of SCRAM-SHA-256 removed from dave"),
    ]
    assert lines.fields[0]["outcome"] == "authentication failed"
    assert lines.fields[0]["principal"] == "User:alice"
    added = next(each for each in lines.fields if each["outcome"] == "changed")
    assert (added["permission"], added["acl_principal"]) == (ALLOW.name, "User:alice")


async def test_counts_are_logged_without_another_denial(lines: Lines) -> None:
    async with guarded() as broker, user(broker, "admin") as admin, user(broker, "bob") as bob:
        topic = await create_topic(admin, "orders")
        for _ in range(5):
            await produce(bob, topic, batch())
        await eventually(lambda: sum(each.get("count", 1) for each in lines.fields) == 5)
    assert len(lines.texts) < 5


def test_audit_file_rotates_and_drops_oldest(
    restored_logging: None, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(log_output, "AUDIT_FILE_BYTES", 2000)
    monkeypatch.setattr(log_output, "AUDIT_FILES", 2)
    path = tmp_path / "audit.log"
    set_up_logging([], "json", str(path))
    clock = Clock()
    audit = Audit(clock)
    for number in range(50):
        clock.now += 1
        decided(audit, f"t{number}")
    files = sorted(each.name for each in tmp_path.iterdir())
    assert files == ["audit.log", "audit.log.1", "audit.log.2"]
    for name in files:
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        for line in (tmp_path / name).read_text().splitlines():
            assert json.loads(line)["outcome"] == "denied"
    assert json.loads(path.read_text().splitlines()[-1])["resource"] == "t49"
    set_up_logging([], "text")
    assert logging.getLogger("kbroker.audit").propagate


@pytest.mark.slow
async def test_server_writes_audit_file(tmp_path: Path) -> None:
    path, port_file = tmp_path / "audit.log", tmp_path / "port"
    settings = (
        "listeners=SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms=PLAIN",
        f"sasl.jaas.config={USERS}",
        f"authorizer.class.name={AUTHORIZER}",
    )
    arguments = [word for each in settings for word in ("-o", each)]
    flags = ("--memory", "--port-file", str(port_file), "--audit-log", str(path))
    with serving(*flags, "--log-format", "json", *arguments) as process:
        await eventually(port_file.exists)
        host, _, port = port_file.read_text().strip().rpartition(":")
        async with connected((host, int(port))) as wire:
            await handshake(wire, "PLAIN")
            await authenticate(wire, b"\0alice\0hush")
            ask = request(ApiKey.DESCRIBE_CLUSTER)
            await wire.ask(ApiKey.DESCRIBE_CLUSTER, 0, ask)
            await produce(wire, Topic("orders"), batch())
        process.terminate()
        _, errors = await trio.to_thread.run_sync(process.communicate)
    (event,) = map(json.loads, path.read_text().splitlines())
    assert (event["principal"], event["operation"]) == ("User:alice", "WRITE")
    assert "kbroker.audit" not in errors


@pytest.mark.slow
async def test_secured_server_creates_files_only_for_owner(tmp_path: Path) -> None:
    """All files with umask 022, except the port file."""
    directory, port_file = tmp_path / "place", tmp_path / "port"
    directory.mkdir(mode=0o700)
    flags = ("--tls-dev", "--data-dir", "data", "--audit-log", "audit.log")
    ports = ("--port", "0", "--http-port", "0", "--registry-port", "0", "--control-port", "0")
    with serving(
        *flags,
        *ports,
        *("--control-token-file", "token", "--topic", "orders:2", "--port-file", str(port_file)),
        cwd=directory,
        umask=0o022,
    ) as process:
        await eventually(port_file.exists)
        process.terminate()
        await trio.to_thread.run_sync(process.communicate)
    found = [each for each in directory.rglob("*") if not each.is_symlink()]
    names = {each.name for each in found}
    assert {"audit.log", "cluster.journal", "admin.password", "meta.properties"} <= names
    assert [each for each in found if each.stat().st_mode & 0o077] == []


@pytest.mark.slow
def test_unwritable_audit_file_rejects_start(tmp_path: Path) -> None:
    flags = ("--memory", "--audit-log", str(tmp_path / "none" / "audit.log"))
    with serving(*flags) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "No such file or directory" in errors
