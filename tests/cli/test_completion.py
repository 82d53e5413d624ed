"""`kbroker completion`: proposals for commands, topics and groups."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
import trio
from click.testing import CliRunner

from kbroker.broker import Broker, open_broker
from kbroker.cli import main
from kbroker.cli.completion import SHELLS, VARIABLE
from kbroker.cli.profiles import write_profiles
from kbroker.config import BrokerConfig
from kbroker.net.server import Listener

from ..commands import Cli, invoke
from ..security.test_access import AUTHORIZER
from ..wire import Topic, connected
from .test_transactions import begin


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_prints_valid_script_for_each_shell(shell: str) -> None:
    script = invoke("completion", shell).stdout
    assert f"{VARIABLE}={shell}_complete" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def proposed(*arguments: str, incomplete: str) -> list[str]:
    """Return the words that bash gets for a command line; it replaces only the part after `=`."""
    line = " ".join(["kbroker", *arguments, incomplete])
    typed = {VARIABLE: "bash_complete", "COMP_LINE": line}
    done = CliRunner(env=typed).invoke(main, [], prog_name="kbroker")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_completion_proposes_commands_and_options() -> None:
    assert proposed(incomplete="to") == ["topic"]
    assert proposed("topic", incomplete="de") == ["describe", "delete"]
    assert "--replication-factor" in proposed("topic", "create", incomplete="--rep")


async def test_completion_proposes_names_from_cluster(cli: Cli) -> None:
    await cli("topic", "create", "orders", "order-events", "users")
    await cli("group", "seek", "--yes", "readers", "--to", "end", "-t", "users")

    async def ask(*arguments: str, incomplete: str) -> list[str]:
        return await trio.to_thread.run_sync(lambda: proposed(*arguments, incomplete=incomplete))

    assert await ask("topic", "describe", incomplete="ord") == ["order-events", "orders"]
    assert await ask("topic", "consume", "-n", "1", incomplete="u") == ["users"]
    assert await ask("group", "describe", incomplete="") == ["readers"]


async def test_completion_proposes_transactional_ids(cli: Cli, broker: Broker) -> None:
    await cli("topic", "create", "t")
    async with connected(broker.endpoint) as wire:
        for name in ("payments-1", "payments-2", "refunds"):
            await begin(wire, name, Topic("t"))
    for command in (("explain", "transaction"), ("cluster", "txn", "abort")):
        found = await trio.to_thread.run_sync(lambda: proposed(*command, incomplete="pay"))  # noqa: B023
        assert found == ["payments-1", "payments-2"]


async def test_completion_proposes_principals_of_users_and_acls() -> None:
    options = [f"authorizer.class.name={AUTHORIZER}", "super.users=User:ANONYMOUS"]
    config, listeners = BrokerConfig.load(options=options), [Listener("PLAINTEXT", "127.0.0.1", 0)]
    async with open_broker(config, data_dir=None, listeners=listeners) as broker:
        reach = ("-b", broker.bootstrap_servers)
        read = ("--operation", "read", "--topic", "t")

        def work() -> None:
            invoke("security", "user", "add", "alice", *reach, stdin="a password")
            invoke("security", "acl", "add", "--principal", "User:bob", *read, *reach)
            ask = functools.partial(proposed, "security", "acl", "list", *reach, "--principal")
            assert ask(incomplete="User:") == ["alice", "bob"], "bash replaces the part after :"
            assert ask(incomplete="") == ["User:alice", "User:bob"]
            assert ask(incomplete="bo") == ["bob"]

        await trio.to_thread.run_sync(work)


def test_completion_proposes_names_of_profiles_and_client_settings() -> None:
    write_profiles("", {"prod": {}, "two words": {}, "test": {}})
    assert proposed("profile", "use", incomplete="") == ["prod", "test"]
    assert proposed("topic", "list", "--profile", incomplete="p") == ["prod"]
    assert proposed("--profile", incomplete="t") == ["test"]
    assert proposed("topic", "list", "-X", incomplete="client") == ["client.id="]


def test_completion_without_cluster_proposes_nothing() -> None:
    assert proposed("topic", "describe", "-b", "localhost:1", incomplete="o") == []


def test_topic_list_imports_no_heavy_modules() -> None:
    """Imports delay every command, so a command imports only what it needs."""
    code = (
        "import sys; from kbroker.cli import main\n"
        "try: main(['topic', 'list', '-b', 'localhost:1'])\n"
        "except SystemExit: pass\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "trio" in loaded
    heavy = {"kbroker.net.server", "kbroker.node.node", "kbroker.config", "kbroker.storage.log"}
    heavy |= {"kbroker.cli.consume", "kbroker.client.producer", "kbroker.protocol.records"}
    assert not loaded & heavy
