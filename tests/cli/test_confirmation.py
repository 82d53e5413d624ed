"""Previews, dry runs and confirmations of all commands that destroy or overwrite something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
import pytest
import trio
from click.testing import CliRunner, Result

from kbroker.broker import Broker
from kbroker.cli import main
from kbroker.cli.confirmation import (
    NOTHING_CHANGED,
    Change,
    Preview,
    count_of,
    destructive,
    question_about,
)
from kbroker.testing.control import run_controlled_broker

from ..brokers import started
from ..commands import Cli
from ..wire import connected, create_topic
from .test_log_repair import damage_middle, write_batches
from .test_secret_arguments import commands
from .test_secured import USERS, profile
from .test_transactions import begin

# Verbs of commands that destroy or overwrite something.
VERBS = frozenset(
    [
        "abort",
        "abort-hanging",
        "delete",
        "drain",
        "expire",
        "offset-delete",
        "purge",
        "remove",
        "repair",
        "reset",
        "revoke",
        "seek",
        "trim",
        "unregister",
        "unset",
    ]
)
# Arguments with which each command changes the state that `prepare` creates.
CALLS = {
    "topic delete": "a",
    "topic trim": "a --before end",
    "topic alter-config": "a --delete retention.ms",
    "group alter-config": "readers --delete consumer.session.timeout.ms",
    "group seek": "readers --to start",
    "group delete": "readers",
    "group offset-delete": "readers -t a",
    "config unset": "message.max.bytes --default",
    "security user remove": "carol",
    "security acl remove": "--principal dave",
    "security token expire": "{token}",
    "cluster quotas remove": "--user dave",
    "cluster drain": "2 --allow-fewer-replicas",
    "cluster unregister": "2",
    "cluster node remove": "2",
}
# Commands that `prepare` does not prepare; each has a test of its own below, and those of a schema
# registry in `test_registry`.
OTHERS = {
    "cluster txn abort", "cluster txn abort-hanging", "log repair", "profile delete",
    "registry delete", "registry level unset",
}  # fmt: skip
PREPARATION = (
    "topic create a --partitions 1 -c retention.ms=100000",
    "topic produce a one two three",
    "topic consume a -o :end -g readers -f %v",
    "group alter-config readers --set consumer.session.timeout.ms=50s",
    "config set message.max.bytes=2000000 --default",
    "security user add carol",
    "security acl add --principal dave --consumer --topic a --group g",
    "cluster quotas set producer_byte_rate=1e9 --user dave",
)
STATE = (
    "topic describe a -o json",
    "group describe readers -c",
    "group describe readers --configs",
    "config show --default",
    "security user list",
    "security acl list",
    "security token list -o wide",
    "cluster quotas list",
    "cluster info",
)


def confirming_commands() -> dict[str, click.Command]:
    """Return the commands that are marked with `destructive`."""
    return {
        " ".join(path): command
        for path, command in commands(main)
        if "yes" in {each.name for each in command.params}
    }


def test_commands_with_destructive_verb_ask_for_confirmation() -> None:
    verbs = {" ".join(path) for path, _ in commands(main) if path[-1] in VERBS}
    assert verbs <= confirming_commands().keys()
    assert len(verbs) > 12


def test_confirmation_test_covers_every_destructive_command() -> None:
    assert confirming_commands().keys() == CALLS.keys() | OTHERS
    for command in confirming_commands().values():
        assert {"yes", "dry_run", "output"} <= {each.name for each in command.params}


def check_refusal(result: Result) -> None:
    """Check the result without a terminal and without `--yes`."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    message = result.stderr.splitlines()[-1]
    assert message.startswith("kbroker: nothing was changed")
    assert "--yes" in message
    assert "--dry-run" in message
    assert len(result.stderr.splitlines()) > 1, "no preview"


def check_dry_run(result: Result) -> None:
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[-1] == NOTHING_CHANGED
    assert len(lines) > 1, "no preview"


def check_json_dry_run(result: Result) -> None:
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert rows
    assert all(row["dry_run"] is True for row in rows)


@pytest.mark.slow
async def test_destructive_commands_change_nothing_without_confirmation(tmp_path: Path) -> None:
    async def prepare(broker: Broker) -> None:
        pass

    settings = {
        "nodes": 2,
        "tls": True,
        "users": USERS,
        "acls": {},
        "super_users": ["admin"],
        "config": {"offsets.topic.num.partitions": 1, "delegation.token.secret.key": "key"},
    }
    async with run_controlled_broker(0, None, prepare, **settings) as (broker, control):
        environment = profile(tmp_path, broker, "admin") | {
            "KBROKER_CONTROL": control.address,
            "KBROKER_CONTROL_TOKEN_FILE": control.token_file,
        }

        async def call(line: str) -> Result:
            work = partial(CliRunner(env=environment).invoke, main, line.split(), input="password")
            result: Result = await trio.to_thread.run_sync(work)
            return result

        async def state() -> list[str]:
            return [(await call(each)).output for each in STATE]

        for line in PREPARATION:
            assert (await call(line)).exit_code == 0, line
        token = json.loads((await call("security token create --json")).stdout)["token"]
        before = await state()
        for name, arguments in CALLS.items():
            line = f"{name} {arguments.format(token=token)}"
            check_refusal(await call(line))
            check_dry_run(await call(f"{line} --dry-run"))
            check_json_dry_run(await call(f"{line} --dry-run --json"))
            check_dry_run(await call(f"{line} --dry-run --yes"))
            assert await state() == before, line


async def test_txn_abort_hanging_changes_nothing_without_confirmation(cli: Cli) -> None:
    async with started(transaction_partition_verification_enable=False) as broker:
        async with connected(broker.endpoint) as wire:
            producer_id = await begin(wire, "hangs", await create_topic(wire, "t"), added=False)
        abort = ("cluster", "txn", "abort-hanging", "t", "0", "0", "-b", broker.bootstrap_servers)
        refused = await cli(*abort, status=2)
        check_refusal(refused)
        assert f"t-0: transaction of producer {producer_id} from offset 0" in refused.stderr
        check_dry_run(await cli(*abort, "--dry-run"))
        check_json_dry_run(await cli(*abort, "--dry-run", "--json"))
        assert broker.node.partitions.named_replica("t", 0).log.last_stable_offset == 0


async def test_txn_abort_changes_nothing_without_confirmation(cli: Cli) -> None:
    async with started() as broker:
        async with connected(broker.endpoint) as wire:
            producer_id = await begin(wire, "payments", await create_topic(wire, "t"))
        abort = ("cluster", "txn", "abort", "payments", "-b", broker.bootstrap_servers)
        refused = await cli(*abort, status=2)
        check_refusal(refused)
        assert f"payments: transaction of producer {producer_id} in t-0" in refused.stderr
        check_dry_run(await cli(*abort, "--dry-run"))
        check_json_dry_run(await cli(*abort, "--dry-run", "--json"))
        assert broker.node.partitions.named_replica("t", 0).log.last_stable_offset == 0


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def test_log_repair_changes_nothing_without_confirmation(tmp_path: Path) -> None:
    await write_batches(tmp_path)
    segment = tmp_path / "t-0" / "00000000000000000000.log"
    damage_middle(segment)
    before = contents(tmp_path)
    repair = ["log", "repair", str(segment.parent)]
    refused = CliRunner().invoke(main, repair)
    check_refusal(refused)
    assert f"{segment.name} is damaged at byte" in refused.stderr
    check_dry_run(CliRunner().invoke(main, [*repair, "--dry-run"]))
    check_json_dry_run(CliRunner().invoke(main, [*repair, "--dry-run", "--json"]))
    assert contents(tmp_path) == before


def test_profile_delete_changes_nothing_without_confirmation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBROKER_PROFILES", str(tmp_path / "profiles.toml"))
    invoke = CliRunner().invoke
    assert invoke(main, ["profile", "add", "old", "-X", "brokers=localhost:1"]).exit_code == 0
    before = contents(tmp_path)
    refused = invoke(main, ["profile", "delete", "old"])
    check_refusal(refused)
    assert "profile old: localhost:1" in refused.stderr
    check_dry_run(invoke(main, ["profile", "delete", "old", "--dry-run"]))
    check_json_dry_run(invoke(main, ["profile", "delete", "old", "--dry-run", "--json"]))
    assert contents(tmp_path) == before


@click.command()
@destructive
def remove_everything(change: Change) -> None:
    """Remove everything, or nothing."""
    preview = Preview("Remove 2 things?", [{"thing": 1}, {"thing": 2}], ["thing 1", "thing 2"])
    if change.confirm(preview):
        change.report(preview.rows, lambda _: ["removed"])


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the standard input of commands be a terminal."""
    with monkeypatch.context() as patch:
        patch.setattr("kbroker.cli.confirmation.is_terminal", lambda: True)
        yield


@pytest.mark.parametrize(
    ("answer", "status", "stdout"), [("y\n", 0, "removed\n"), ("n\n", 1, ""), ("\n", 1, "")]
)
def test_question_on_terminal_decides_about_change(
    monkeypatch: pytest.MonkeyPatch, answer: str, status: int, stdout: str
) -> None:
    with terminal(monkeypatch):
        result = CliRunner().invoke(remove_everything, [], input=answer)
    assert (result.exit_code, result.stdout) == (status, stdout)
    assert "thing 1\nthing 2\nRemove 2 things? [y/N]" in result.stderr
    assert ("kbroker: nothing was changed" in result.stderr) == bool(status)


def test_question_escapes_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Change(is_approved=False, is_dry_run=False, output="text")

    @click.command()
    def command() -> None:
        change.confirm(Preview("Delete x\x1b[2J\ny?", [], []))

    with terminal(monkeypatch):
        result = CliRunner().invoke(command, [], input="n\n")
    assert r"Delete x\x1b[2J\ny? [y/N]" in result.stderr


def test_yes_shows_preview_and_result_has_dry_run_field() -> None:
    result = CliRunner().invoke(remove_everything, ["--yes"])
    assert (result.stderr, result.stdout) == ("thing 1\nthing 2\n", "removed\n")
    result = CliRunner().invoke(remove_everything, ["-y", "--json"])
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"thing": 1, "dry_run": False},
        {"thing": 2, "dry_run": False},
    ]


def test_dry_run_prints_details_and_summary() -> None:
    change = Change(is_approved=True, is_dry_run=True, output="text")
    preview = Preview("Do it?", [], ["short"], lambda wide: ["long"])

    @click.command()
    def command() -> None:
        assert not change.confirm(preview)

    assert CliRunner().invoke(command).stdout == f"long\nshort\n{NOTHING_CHANGED}\n"


def test_counts_and_questions_use_singular_and_plural() -> None:
    assert [count_of(number, "record") for number in (0, 1, 2000)] == [
        *("0 records", "1 record", "2,000 records")
    ]
    assert question_about("Delete", ["a"], "topic") == "Delete topic a?"
    assert question_about("Delete", ["a", "b"], "topic", " now") == "Delete these 2 topics now?"
