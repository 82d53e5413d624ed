"""Profiles of the command line, stored in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli.profiles import FILE_VARIABLE
from kbroker.cli.target import SETTINGS

from ..commands import invoke


def test_profile_create_reads_client_properties(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=h:1\nmetadata.max.age.ms=5\nclient.id=me\nacks=all\n")
    output = invoke("profile", "create", "own", "--file", str(file), "-X", "client.id=you").stdout
    assert output.splitlines() == [
        "not stored, because commands do not use it: metadata.max.age.ms, acks",
        "profile own is selected",
    ]
    assert invoke("profile", "list").stdout == "* own  client.id=you  brokers=h:1\n"
    assert "-X KEY=VALUE or --file" in invoke("profile", "create", "own", status=2).stderr
    file.write_text("a=\\u00\n")
    assert "four hexadecimal digits" in (
        invoke("profile", "create", "own", "--file", str(file), status=2).stderr
    )


def test_profile_list_hides_secrets() -> None:
    ends = (".password", ".secret", ".key", ".jaas.config", ".user.info")
    secrets = {name for name in SETTINGS if name.endswith(ends)}
    assert len(secrets) == 7
    given = [f"{name}=value-of-{name}" for name in SETTINGS]
    invoke("profile", "create", "all", *(word for each in given for word in ("-X", each)))
    output = invoke("profile", "list").stdout
    for name in SETTINGS:
        shown = "[hidden]" if name in secrets else f"value-of-{name}"
        assert f"{name}={shown}" in output.split()


def test_profiles_can_be_created_listed_and_selected() -> None:
    assert "no profiles exist" in invoke("profile", "list").stdout
    invoke("profile", "create", "a b", "-X", 'client.id=say "x"', "-X", "brokers=h:1")
    invoke("profile", "create", "c", "-X", "brokers=h:2")
    assert invoke("profile", "list").stdout.splitlines() == [
        '  a b  client.id=say "x"  brokers=h:1',
        "* c  brokers=h:2",
    ]
    assert "did you mean 'a b'?" in invoke("profile", "use", "ab", status=2).stderr
    invoke("profile", "use", "-")
    assert "*" not in invoke("profile", "list").stdout


@pytest.mark.parametrize("location", ["file/profiles.toml", "directory"])
def test_profile_create_reports_unwritable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    """The test uses paths that even root cannot write."""
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / location))
    monkeypatch.setattr("kbroker.cli.profile.read_profiles", lambda: ("", {}))
    output = invoke("profile", "create", "p", "-X", "brokers=h:1", status=1).stderr
    assert f"{tmp_path / location}: cannot write it" in output
    assert f"name another file with {FILE_VARIABLE}" in output
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["directory", "file"]
    monkeypatch.undo()
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / location))
    assert "cannot read it" in invoke("profile", "list", status=2).stderr


def test_commands_report_unreadable_profile_file(tmp_path: Path) -> None:
    (tmp_path / "profiles.toml").write_text("current = ")
    assert "correct or delete the file" in invoke("topic", "list", status=2).stderr
