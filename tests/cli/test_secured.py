"""All commands against a broker with TLS, SASL and ACLs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from kbroker.broker import Broker
from kbroker.cli import main
from kbroker.testing import LocalBroker
from kbroker.testing.control import run_controlled_broker

from .test_output import leaves

USERS = {"admin": "ink", "nobody": "pen"}
# Commands that connect to no running broker.
ALONE = {
    *("serve", "run", "completion", "help", "version", "init pipeline", "demo", "config explain"),
    *(f"log {verb}" for verb in ("dump", "verify", "repair", "import")),
    *(f"spark {verb}" for verb in ("packages", "doctor")),
    *(f"profile {verb}" for verb in ("list", "show", "use", "add", "edit", "delete")),
    *(f"lake {verb}" for verb in ("merge", "check", "set-aside")),
    *("cluster resize", "cluster migrate-metadata", "cluster node mark-dead"),
    *(f"registry {verb}" for verb in ("list", "show", "register", "check", "compare", "delete")),
    *(f"registry level {verb}" for verb in ("get", "set", "unset")),
}
# `lake archive` needs Spark (see tests/spark); `compat` reads client files, not profiles; `mcp`
# serves a program (see test_mcp.py).
REPLACEMENTS = {"lake archive", "compat", "mcp"}
CALLS = [
    "health",
    "topic create a b copy --partitions 1",
    "topic list",
    "topic describe a",
    "topic alter-config a --set retention.ms=100000",
    "topic add-partitions b 2",
    "topic produce a one two three",
    "topic produce b other",
    "topic consume a -o :end -f %v",
    "topic consume a -o :end -g readers -f %v",
    "topic trim b --yes --before end",
    "group list",
    "group describe readers",
    "group alter-config readers --set consumer.session.timeout.ms=50s",
    "group describe readers --configs",
    "group seek readers --yes --to start",
    "group wait readers --state Empty",
    "group offset-delete readers --yes -t a",
    "cluster health",
    "cluster info",
    "cluster logdirs",
    "cluster clients --topic a",
    "cluster rebalance --dry-run",
    "topic move b --to 1",
    "cluster quotas set producer_byte_rate=1e9 --user dave",
    "cluster quotas list",
    "cluster quotas remove --yes --user dave",
    "cluster txn list",
    "cluster txn find-hanging",
    "config show --node 1",
    "config log-level kbroker.net=WARN --reset kbroker.node",
    "config set message.max.bytes=2000000 --default",
    "config unset --yes message.max.bytes --default",
    "security user add carol",
    "security user list",
    "security user remove --yes carol",
    "security acl add --principal dave --consumer --topic a --group g",
    "security acl list --json",
    "security acl explain --principal dave --operation write --topic a --json",
    "security acl remove --principal dave --yes",
    "security token create --json",
    "security token list",
    "security token renew {token}",
    "security token expire --yes {token}",
    "audit a",
    "replay a --to-topic copy",
    "audit a --against copy --match-by key",
    "fault arm Produce --error NOT_LEADER_OR_FOLLOWER --times 1",
    "fault hits 1",
    "fault disarm 1",
    "fault check",
    "clock advance 1s",
    "explain group readers",
    "explain partition a 0",
    "explain share readers a 0",
    "explain transaction tx",
    "explain client nobody",
    "control produce topic=a value=x",
    "cluster node list",
    "cluster node add",
    "cluster link cut 1 2",
    "cluster link heal",
    "cluster drain --yes 2",
    "cluster node stop 2",
    "cluster unregister --yes 2",
    "cluster node start 2",
    "cluster node crash 2",
    "cluster node remove --yes 2",
    "cluster txn describe tx",
    "cluster txn abort --yes tx",
    "cluster txn abort-hanging --yes a 0 0",
    "topic consume a -o :end -g readers -f %v",
    "group delete --yes readers",
    "topic delete --yes b",
]
# Errors of commands that find nothing to do.
NOTHING_THERE = {
    "cluster txn describe tx": "transactional ID 'tx' does not exist",
    "cluster txn abort --yes tx": "transactional ID 'tx' does not exist",
    "cluster txn abort-hanging --yes a 0 0": "no open transaction starts at offset 0",
}


def test_secured_test_calls_every_command() -> None:
    names = sorted(leaves(main), key=len, reverse=True)
    called = {next(name for name in names if f"{each} ".startswith(f"{name} ")) for each in CALLS}
    assert called | ALONE | REPLACEMENTS == set(names)
    assert not called & ALONE


def invoke(environment: dict[str, str], *arguments: str) -> Result:
    return CliRunner(env=environment).invoke(main, arguments, input="a password")


def toml(settings: dict[str, str]) -> str:
    lines = "\n".join(
        f"{json.dumps(name)} = {json.dumps(value)}" for name, value in settings.items()
    )
    return f'current = "secure"\n[profiles.secure]\n{lines}\n'


def profile(directory: Path, broker: LocalBroker, user: str) -> dict[str, str]:
    """Return the environment of commands that use a user's profile."""
    settings = broker.client(user).java
    settings["brokers"] = settings.pop("bootstrap.servers")
    path = directory / f"{user}.toml"
    path.write_text(toml(settings))
    return {"KBROKER_PROFILES": str(path), "KBROKER_BOOTSTRAP": ""}


@pytest.mark.slow
async def test_all_commands_work_with_tls_sasl_and_acls(tmp_path: Path) -> None:
    async def prepare(broker: Broker) -> None:
        pass

    settings = {
        "tls": True,
        "users": USERS,
        "acls": {},
        "super_users": ["admin"],
        "config": {"offsets.topic.num.partitions": 1, "delegation.token.secret.key": "key"},
    }
    async with run_controlled_broker(0, None, prepare, **settings) as (broker, control):
        admin = profile(tmp_path, broker, "admin") | {
            "KBROKER_CONTROL": control.address,
            "KBROKER_CONTROL_TOKEN_FILE": control.token_file,
        }
        wrong = {}
        token = ""
        for each in CALLS:
            arguments = each.format(token=token).split()
            result = await trio.to_thread.run_sync(partial(invoke, admin, *arguments))
            if each.startswith("security token create"):
                token = json.loads(result.stdout)["token"]
            if result.exit_code and not (
                each in NOTHING_THERE and NOTHING_THERE[each] in result.output
            ):
                wrong[each] = result.output or result.exception
        assert not wrong
        assert {"a", "copy"} <= (await trio.to_thread.run_sync(broker.topics)).keys()
        nobody = profile(tmp_path, broker, "nobody")
        refused = await trio.to_thread.run_sync(partial(invoke, nobody, "topic", "create", "c"))
        assert refused.exit_code == 1
        assert "may not CREATE topic c" in refused.output
