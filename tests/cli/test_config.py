"""`kbroker config explain`, and `show` without a running server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kbroker.cli import main
from kbroker.config import BROKER_PROPERTIES

# A setting whose feature is not implemented yet.
LATER = "replica.alter.log.dirs.io.max.bytes.per.second"


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["config", *arguments], env=env)


def test_config_explain_describes_setting_for_each_resource_type() -> None:
    done = run("explain", "min.insync.replicas", "--format", "json")
    broker, topic = json.loads(done.stdout)
    assert (broker["of"], topic["of"]) == ("broker", "topic")
    assert broker["give_it"][:2] == [
        "-o min.insync.replicas=VALUE",
        "KBROKER_CFG_MIN_INSYNC_REPLICAS=VALUE",
    ]
    assert topic["else_from_broker"] == ["min.insync.replicas"]


def test_config_explain_shows_differences_from_kafka() -> None:
    text = run("explain", "max.connections", "log.dir", "flush.policy").stdout
    assert "kafka default     2147483647" in text
    assert "kbroker only      yes" in text
    assert "max.connections (broker setting)\n  Maximum number of open connections" in text


def test_config_explain_describes_settings_without_effect() -> None:
    text = run("explain", "zookeeper.connect", "log.preallocate").stdout
    assert text.count("none: kbroker works differently") == 2


def test_config_explain_of_unknown_setting_suggests_similar_name() -> None:
    done = run("explain", "retention.m")
    assert done.exit_code == 1
    assert "did you mean retention.ms?" in done.stderr


def test_config_explain_lists_settings_with_word_in_description() -> None:
    text = run("explain", "tombstone").stdout
    assert [line.split()[:2] for line in text.splitlines()] == [
        ["NAME", "OF"],
        ["log.cleaner.delete.retention.ms", "broker"],
        ["delete.retention.ms", "topic"],
    ]
    assert "A consumer that started" not in text


def test_config_explain_finds_settings_by_several_words_and_names() -> None:
    found = json.loads(run("explain", "DELETE tomb", "--format", "json").stdout)
    assert [each["name"] for each in found] == [
        "log.cleaner.delete.retention.ms",
        "delete.retention.ms",
    ]
    text = run("explain", "flush.policy", "quorum").stdout
    assert "flush.policy (broker setting)" in text
    assert "\ncontroller.quorum.append.linger.ms " in text
    missing = run("explain", "tombstone turtle")
    assert missing.exit_code == 1
    assert "Unknown setting: tombstone turtle" in missing.stderr


def test_config_show_diff_lists_changed_settings_with_source(tmp_path: Path) -> None:
    file = tmp_path / "k.toml"
    file.write_text("num.partitions = 3\nmessage.max.bytes = 1048588\n")
    flags = ["--config", str(file), "--port", "0", "-o", "ssl.key.password=S3cret"]
    flags += ["-o", f"{LATER}=1"]
    environ = {"KBROKER_CFG_LOG_RETENTION_MS": "5", "KAFKA_LOG_ROLL_MS": "6"}
    done = run("show", "--diff", "--env-config", "--json", *flags, env=environ)
    rows = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert {name: (row["value"], row["source"]) for name, row in rows.items()} == {
        "listeners": ("PLAINTEXT://localhost:0", "--port"),
        "log.retention.ms": ("5", "environment"),
        "log.roll.ms": ("6", "KAFKA_* environment"),
        "num.partitions": ("3", str(file)),
        LATER: ("1", "option"),
        "ssl.key.password": ("(hidden)", "option"),
    }
    assert "S3cret" not in done.output
    assert f"{LATER} has no effect yet" in done.stderr


def test_options_accept_values_with_units() -> None:
    flags = ("-o", "log.retention.hours=2d", "-o", "log.segment.bytes=64MiB")
    rows = map(json.loads, run("show", "--diff", "--json", *flags).stdout.splitlines())
    assert {row["name"]: row["value"] for row in rows} == {
        "log.retention.hours": "48",
        "log.segment.bytes": "67108864",
    }
    wrong = run("show", "-o", "log.segment.bytes=2d")
    assert wrong.exit_code == 2
    assert "unknown unit 'd' (valid: B, kB, MB, GB, TB, " in wrong.stderr


def test_config_show_lists_all_settings() -> None:
    lines = run("show").stdout.splitlines()
    assert lines[0].split() == ["NAME", "VALUE", "SOURCE"]
    assert len(lines) == len(BROKER_PROPERTIES) + 1
    assert any(line.split() == ["num.partitions", "1", "-"] for line in lines)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-o", "num.partitions=x"], "num.partitions"),
        (["--strict", "-o", "num.partition=1"], "mean"),
    ],
)
def test_config_show_rejects_invalid_settings(flags: list[str], message: str) -> None:
    done = run("show", *flags)
    assert done.exit_code == 1
    assert message in done.stderr
