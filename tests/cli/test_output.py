"""Escaping of names that clients choose, in the output of all commands."""

from __future__ import annotations

import functools
import json
import re
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import pytest
import trio
from click.testing import CliRunner, Result

from kbroker.broker import Broker
from kbroker.cli import main
from kbroker.cli.output import Column, Format, say, show, table, to_json, to_yaml
from kbroker.client.endpoint import Endpoint
from kbroker.client.ndjson import parse_line
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import encode_bytes
from kbroker.protocol.group_metadata import Assignment, TopicPartitions
from kbroker.protocol.messages.groups import JoinGroupRequest, SyncGroupRequest
from kbroker.protocol.messages.quotas import AlterClientQuotasRequest
from kbroker.protocol.messages.security import AlterUserScramCredentialsRequest
from kbroker.protocol.records import Record
from kbroker.testing.control import run_controlled_broker

from ..security.test_access import AUTHORIZER
from ..wire import Wire, batch, connected, create_topic, produce, request

# 7-bit and 8-bit escape sequences, line breaks, a direction change, and an invisible tag.
EVIL = "evil\x1b[2J\u009b31m\x7f\r\nFORGED \u202e\u2028\U000e0041"
PRINTED = r"evil\x1b[2J\x9b31m\x7f\r\nFORGED \u202e\u2028\U000e0041"
# A group that only has committed offsets, and an initialized transactional ID.
OTHER, OPEN = f"other {EVIL}", f"open {EVIL}"
FORMS = [[], *([flag, form.value] for flag in ("-f", "-o") for form in Format)]
READS = ["--operation", "read"]
# Commands whose output has no names that clients chose.
SILENT = (
    *(
        "serve",
        "run",
        "health",
        "completion",
        "help",
        "version",
        "init pipeline",
        "clock advance",
        "demo",
    ),
    *(f"config {verb}" for verb in ("explain", "log-level", "show", "set", "unset")),
    *(f"log {verb}" for verb in ("verify", "repair", "import")),
    *(f"fault {verb}" for verb in ("arm", "hits", "disarm")),
    *(f"spark {verb}" for verb in ("packages", "doctor")),
    *(f"profile {verb}" for verb in ("list", "show", "use", "add", "edit", "delete")),
    *(f"lake {verb}" for verb in ("archive", "merge", "check", "set-aside")),
    *(
        f"cluster {verb}"
        for verb in ("resize", "migrate-metadata", "drain", "rebalance", "unregister")
    ),
    *(f"cluster link {verb}" for verb in ("cut", "heal")),
    *(
        f"cluster node {verb}"
        for verb in ("list", "stop", "crash", "start", "add", "remove", "mark-dead")
    ),
)


# Commands with other servers and clients: test_registry.py and test_mcp.py check their output.
ELSEWHERE = (
    "mcp",
    *(f"registry {verb}" for verb in ("list", "show", "register", "check", "compare", "delete")),
    *(f"registry level {verb}" for verb in ("get", "set", "unset")),
)


def commands(data: Path) -> dict[str, list[list[str]]]:
    """Return each command with arguments that make it print names that clients chose."""
    offsets = [str(path) for path in data.glob("__consumer_offsets-*")]
    states = [str(path) for path in data.glob("__transaction_state-*")]
    return {
        **group_commands(),
        "cluster txn list": FORMS,
        "cluster txn describe": [[OPEN, *form] for form in FORMS] + [[EVIL]],
        "cluster txn find-hanging": [["--older-than", "0s"]],
        "cluster txn abort": [[OPEN, "--dry-run"], [EVIL, "--yes"]],
        "cluster txn abort-hanging": [["t", "0", "7", "--yes"]],
        **security_commands(),
        "cluster quotas list": [*FORMS, ["--user", EVIL]],
        "cluster quotas set": [["--user", EVIL, "producer_byte_rate=1e9"]],
        "cluster quotas remove": [
            ["--user", EVIL, "--client-id", EVIL, "--dry-run"],
            ["--user", EVIL, "producer_byte_rate"],
            ["--user", EVIL, "--yes"],
        ],
        "cluster clients": [*FORMS, ["--topic", "t"], ["--topic", EVIL]],
        "cluster health": FORMS,
        "cluster info": FORMS,
        "cluster logdirs": FORMS,
        "topic list": FORMS,
        "topic describe": [["t", *form] for form in [*FORMS, ["--configs"]]],
        "topic consume": [["t", "-o", ":end", *more] for more in ([], ["-g", EVIL])],
        "topic create": [["t"], ["x" + EVIL]],
        "topic delete": [["x" + EVIL, "--yes"]],
        "topic alter-config": [["t", "--set", f"retention.ms={EVIL}"]],
        "topic add-partitions": [["x" + EVIL, "1"]],
        "topic move": [["x" + EVIL, "--to", "1"], ["t", "--to", "9"]],
        "topic trim": [["x" + EVIL, "--before", "end", "--yes"]],
        "topic produce": [["x" + EVIL, "value"]],
        "log dump": [
            [flag, *directories]
            for directories in (offsets, states, [str(data / "t-0")])
            for flag in ("--records", "--json")
        ]
        + [["--json", "--records", *offsets]],
        "compat": [
            ["kafka-consumer-groups", *arguments]
            for arguments in (["--list"], ["--describe", "--all-groups", "--members"])
        ],
        "audit": [["t", *form] for form in FORMS] + [["t", "--unique-by", "key"]],
        "replay": [["t", "--to-topic", "x" + EVIL, "--dry-run"]],
        "explain group": [[EVIL], [OTHER]],
        "explain partition": [["t", "0"]],
        "explain share": [[EVIL, "t", "0"], [OTHER, "t", "0"]],
        "explain transaction": [[OPEN], [EVIL]],
        "explain client": [[EVIL]],
        "control": [["group", f"group={EVIL}"], ["report"], ["delete_topic", f"name={EVIL}"]],
        "fault check": [[]],
        **{name: [] for name in (*SILENT, *ELSEWHERE)},
    }


def group_commands() -> dict[str, list[list[str]]]:
    """Return the commands for groups."""
    described = ["-s", "-c", "-t", "--configs"]
    return {
        "group list": FORMS,
        "group describe": [[EVIL, OTHER, *form] for form in FORMS]
        + [[EVIL, flag] for flag in described]
        + [["evul" + EVIL[4:]]],  # did you mean ...?
        "group alter-config": [
            [EVIL, "--set", "share.isolation.level=read_committed", *form] for form in FORMS
        ]
        + [["x" + EVIL, "--set", f"a={EVIL}"], [EVIL, "--delete", EVIL, "--dry-run"]],
        "group seek": [[OTHER, "--to", "start", "--dry-run"], [EVIL, "--to", "start", "--yes"]],
        "group wait": [[EVIL, "--state", "Stable"], [EVIL, "--members", "9", "--timeout", "1ms"]],
        "group offset-delete": [[OTHER, "-t", "t", "--yes"], [OTHER, "-t", "nothing", "--yes"]],
        "group delete": [[EVIL, "--yes"], [OTHER, "--yes"]],
    }


def security_commands() -> dict[str, list[list[str]]]:
    """Return the commands for users, tokens and ACLs."""
    return {
        "security user list": [*FORMS, [EVIL], ["x" + EVIL]],
        "security user add": [[EVIL]],
        "security user remove": [["x" + EVIL, "--yes"], [EVIL, "--yes"]],
        "security token list": [*FORMS, [EVIL]],
        "security token create": [["--renewer", EVIL], ["--owner", EVIL]],
        "security token renew": [[EVIL]],
        "security token expire": [[EVIL, "--yes"]],
        "security acl add": [["--principal", EVIL, "--topic", EVIL, *READS]],
        "security acl list": FORMS,
        "security acl explain": [
            ["--principal", "x" + EVIL, "--topic", EVIL, *READS, *form] for form in FORMS
        ],
        "security acl remove": [["--principal", EVIL], ["--principal", EVIL, "--yes"]],
    }


def leaves(command: click.Command, path: str = "") -> Iterator[str]:
    """Return all commands below a group."""
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, f"{path} {name}".strip())


def test_output_test_covers_every_command() -> None:
    assert set(leaves(main)) == set(commands(Path()))


@asynccontextmanager
async def evil_broker(data: Path) -> AsyncIterator[dict[str, str]]:
    """Start a broker in which all names are EVIL; yield the environment for commands."""

    async def prepare(broker: Broker) -> None:
        pass

    config = {
        "offsets.topic.num.partitions": 1,
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }
    settings = {"config": config, "data_dir": str(data)}
    async with (
        run_controlled_broker(0, None, prepare, **settings) as (local, control),
        connected(Endpoint.parse(local.bootstrap_servers)) as wire,
    ):
        topic = await create_topic(wire, "t")
        record = Record(EVIL.encode(), EVIL.encode(), 0, [(EVIL, EVIL.encode())])
        assert (await produce(wire, topic, batch([record]))).error_code == 0
        await _join(wire)
        await _commit(wire)
        await _begin(wire)
        await _make_user(wire)
        await _set_quota(wire)
        yield {
            "KBROKER_BOOTSTRAP": local.bootstrap_servers,
            "KBROKER_CONTROL": control.address,
            "KBROKER_CONTROL_TOKEN_FILE": control.token_file,
        }


async def _ask(wire: Wire, key: ApiKey, version: int, message: Any) -> Any:
    await wire.send(key, version, message, client_id=EVIL)
    return await wire.receive()


async def _set_quota(wire: Wire) -> None:
    cls = AlterClientQuotasRequest
    names = {"user": EVIL, "client-id": EVIL}
    row = cls.Entry(
        entity=[cls.Entity(entity_type=kind, entity_name=name) for kind, name in names.items()],
        ops=[cls.Op(key="producer_byte_rate", value=1e9)],
    )
    response = await _ask(wire, ApiKey.ALTER_CLIENT_QUOTAS, 1, cls(entries=[row]))
    assert response.entries[0].error_code == 0


async def _join(wire: Wire) -> None:
    """Join group EVIL with one partition."""
    await _ask(wire, ApiKey.FIND_COORDINATOR, 0, request(ApiKey.FIND_COORDINATOR, key=EVIL))
    joined = await _ask(
        wire,
        ApiKey.JOIN_GROUP,
        5,
        JoinGroupRequest(
            group_id=EVIL,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            group_instance_id=EVIL,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name=EVIL, metadata=b"")],
        ),
    )
    given = Assignment(
        assigned_partitions=[TopicPartitions(topic="t", partitions=[0])], user_data=None
    )
    assignment = struct.pack(">h", 0) + encode_bytes(given, 0)
    row = SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=assignment)
    sync = SyncGroupRequest(
        group_id=EVIL,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[row],
    )
    assert (await _ask(wire, ApiKey.SYNC_GROUP, 2, sync)).error_code == 0


async def _commit(wire: Wire) -> None:
    """Commit an offset of group OTHER, with metadata."""
    cls: Any = type(request(ApiKey.OFFSET_COMMIT))
    partition = cls.Partition(partition_index=0, committed_offset=1, committed_metadata=EVIL)
    topics = [cls.Topic(name="t", partitions=[partition])]
    response = await _ask(wire, ApiKey.OFFSET_COMMIT, 7, cls(group_id=OTHER, topics=topics))
    assert response.topics[0].partitions[0].error_code == 0


async def _begin(wire: Wire) -> None:
    find = request(ApiKey.FIND_COORDINATOR, key=OPEN, key_type=1)
    await _ask(wire, ApiKey.FIND_COORDINATOR, 3, find)
    init = request(ApiKey.INIT_PRODUCER_ID, transactional_id=OPEN, transaction_timeout_ms=60_000)
    assert (await _ask(wire, ApiKey.INIT_PRODUCER_ID, 4, init)).error_code == 0


async def _make_user(wire: Wire) -> None:
    row = AlterUserScramCredentialsRequest.Upsertion(
        name=EVIL, mechanism=1, iterations=4096, salt=b"s", salted_password=b"p"
    )
    ask = AlterUserScramCredentialsRequest(upsertions=[row])
    response = await _ask(wire, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, ask)
    assert response.results[0].error_code == 0


@pytest.mark.slow
async def test_commands_escape_control_characters_of_client_names(tmp_path: Path) -> None:
    data = tmp_path / "data"
    seen: set[str] = set()
    async with evil_broker(data) as environment:
        for command, calls in commands(data).items():
            for call in calls:
                arguments = [*command.split(), *call]
                work = functools.partial(
                    CliRunner(env=environment).invoke,
                    main,
                    arguments,
                    input="a password",
                    catch_exceptions=False,
                )
                result = await trio.to_thread.run_sync(work)
                assert result.exit_code in (0, 1, 3, 4) or "add --yes" in result.stderr, (
                    arguments,
                    result.output,
                )
                check(arguments, result)
                if "evil" in result.output:
                    seen.add(command)
    may_be_silent = {"cluster health", "cluster info", "cluster logdirs", "fault check"}
    may_be_silent |= {
        "cluster txn find-hanging",
        "cluster txn abort-hanging",
        "topic list",
        "audit",
    }
    may_be_silent |= {"topic describe", "explain partition"}
    # Delegation tokens need authentication: see test_security_token.py.
    may_be_silent |= {f"security token {verb}" for verb in ("list", "create", "renew", "expire")}
    assert {name for name, calls in commands(data).items() if calls} - seen <= may_be_silent


def check(arguments: list[str], result: Result) -> None:
    """Check that the output has printable lines only, and that JSON has the original names."""
    for line in result.output.split("\n"):
        assert line.isprintable(), (arguments, line)
        assert not line.startswith("FORGED"), (arguments, line)
    if "json" in arguments and "evil" in result.stdout:
        assert EVIL in "".join(_texts(json.loads(result.stdout))), arguments


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def test_commands_print_through_output_module_only() -> None:
    """`kbroker.cli.output` escapes names, so no command may print by itself."""
    directory = Path(__file__).parents[2] / "kbroker" / "cli"
    around = [
        (path.name, line.strip())
        for path in sorted(directory.glob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"\bprint\(|click\.s?echo\(|\bstyle\(|ensure_ascii", line)
        and path.name != "output.py"
    ]
    assert around == [
        (
            "completion.py",
            "click.echo(cls(context.find_root().command, {}, PROGRAM, VARIABLE).source())",
        )
    ]


def test_each_output_format_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    say(EVIL, 5, err=True)
    assert capsys.readouterr().err == f"{PRINTED}\n5\n"
    columns = [Column("a"), Column("b")]
    lines = table(columns, [{"a": EVIL, "b": {EVIL: [EVIL]}}, {"a": "x", "b": 1}], wide=True)
    assert lines[1].startswith(f"{PRINTED}  {PRINTED}=")
    assert lines[2] == "x".ljust(len(PRINTED)) + "  1"
    for form in Format:
        show(form, {EVIL: EVIL}, lambda _: [EVIL])
        out = capsys.readouterr().out
        assert all(line.isprintable() for line in out.split("\n"))
        if form in (Format.JSON, Format.NDJSON):
            assert json.loads(out) == {EVIL: EVIL}
    assert to_json("grün 🙂") == '"grün 🙂"'
    assert to_yaml({"k": "\U000e0041\u009b"}) == r'k: "\U000e0041\U0000009b"'
    assert parse_line(to_json({"topic": "t", "value": EVIL}).encode(), 0).record.value == (
        EVIL.encode()
    )


def test_usage_error_escapes_control_characters() -> None:
    result = CliRunner().invoke(main, ["topic", "consume", "t", "--offset", EVIL])
    assert result.exit_code == 2
    check([], result)
    assert "evil" in result.stderr
