"""`kbroker completion`: commands, topics and groups while typing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import trio
from click.testing import CliRunner

from kbroker.cli import main
from kbroker.cli.completion import SHELLS, VARIABLE

from ..commands import Cli, invoke


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts(shell: str) -> None:
    script = invoke("completion", shell).stdout
    assert f"{VARIABLE}={shell}_complete" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def proposed(*words: str, incomplete: str) -> list[str]:
    typed = {VARIABLE: "bash_complete", "COMP_WORDS": " ".join(["kbroker", *words, incomplete])}
    typed["COMP_CWORD"] = str(len(words) + 1)
    done = CliRunner(env=typed).invoke(main, [], prog_name="kbroker")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands() -> None:
    assert proposed(incomplete="to") == ["topic"]
    assert proposed("topic", incomplete="de") == ["describe", "delete"]
    assert "--replication-factor" in proposed("topic", "create", incomplete="--rep")


async def test_names_come_from_the_cluster(cli: Cli) -> None:
    await cli("topic", "create", "orders", "order-events", "users")
    await cli("group", "seek", "readers", "--to", "end", "-t", "users")

    async def ask(*words: str, incomplete: str) -> list[str]:
        return await trio.to_thread.run_sync(lambda: proposed(*words, incomplete=incomplete))

    assert await ask("topic", "describe", incomplete="ord") == ["order-events", "orders"]
    assert await ask("topic", "consume", "-n", "1", incomplete="u") == ["users"]
    assert await ask("group", "describe", incomplete="") == ["readers"]


def test_no_cluster_is_no_proposal() -> None:
    assert proposed("topic", "describe", "-b", "localhost:1", incomplete="o") == []


def test_short_commands_import_little() -> None:
    """Start-up time is felt: what listing topics does not need is not imported."""
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
