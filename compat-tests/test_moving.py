"""The commands of docs/how-to/migrate.md move topics and groups between Kafka and kbroker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness.brokers import ApacheBroker, Broker, KbrokerBroker
from harness.places import ROOT

CLIENT = "command line"
PAGE = ROOT / "docs/how-to/migrate.md"
KBROKER = f'kbroker() {{ {sys.executable} -m kbroker "$@"; }}\nset -eo pipefail\n'
RECORDS = "".join(
    json.dumps({"key": f"k{i}", "value": f"v{i}", "timestamp": 1_700_000_000_000 + i}) + "\n"
    for i in range(50)
)


def block(mark: str) -> str:
    """Return the commands of a marked section of the page."""
    part = PAGE.read_text().split(f"<!-- {mark} -->")[1].split(f"<!-- /{mark} -->")[0]
    (commands,) = re.findall(r"```sh\n(.*?)```", part, re.DOTALL)
    return str(commands)


def shell(commands: str, directory: Path, **variables: str) -> str:
    """Run commands in a directory and return stdout."""
    done = subprocess.run(
        ["bash", "-c", KBROKER + commands],
        cwd=directory,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fill(broker: Broker, directory: Path) -> None:
    (directory / "records.ndjson").write_text(RECORDS)
    shell(
        "kbroker topic create orders -p 3 -c retention.ms=-1\n"
        "kbroker topic produce orders --json -q --file records.ndjson\n"
        "kbroker group seek readers --yes --to 5 --topic orders\n",
        directory,
        KBROKER_BOOTSTRAP=broker.address,
    )


def content(broker: Broker, directory: Path) -> tuple[list[str], str, str]:
    """Return the records by partition, the configs, and the offsets of the group."""
    address = {"KBROKER_BOOTSTRAP": broker.address}
    return (
        sorted(
            shell("kbroker topic consume orders -o :end --json", directory, **address).split("\n")
        ),
        shell("kbroker topic describe orders | grep retention.ms", directory, **address),
        shell("kbroker group describe readers --commits", directory, **address),
    )


@pytest.mark.parametrize(
    ("source", "target"), [(ApacheBroker, KbrokerBroker), (KbrokerBroker, ApacheBroker)]
)
def test_topic_is_migrated_while_both_brokers_run(
    source: type[Broker], target: type[Broker], tmp_path: Path
) -> None:
    old, new = source(tmp_path / "old"), target(tmp_path / "new")
    try:
        old.start()
        new.start()
        fill(old, tmp_path)
        shell(block("running"), tmp_path, FROM=old.address, TO=new.address)
        assert content(new, tmp_path) == content(old, tmp_path)
    finally:
        old.kill()
        new.kill()


def test_data_of_stopped_kafka_is_imported(tmp_path: Path) -> None:
    old = ApacheBroker(tmp_path / "old")
    try:
        old.start()
        fill(old, tmp_path)
        before = content(old, tmp_path)
        old.stop()
    finally:
        old.kill()
    (tmp_path / "kafka-data").symlink_to(old.data_dir)
    shell(block("stopped"), tmp_path)
    new = KbrokerBroker(tmp_path / "new")
    (tmp_path / "kbroker-data").rename(new.data_dir)
    try:
        new.start()
        assert content(new, tmp_path) == before
    finally:
        new.kill()
