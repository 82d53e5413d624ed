"""Profiles of the command line, stored in a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kbroker.cli.profile import _edited
from kbroker.cli.profiles import FILE_VARIABLE, read_profiles, write_profiles
from kbroker.cli.target import SETTINGS

from ..commands import invoke


def test_profile_add_reads_client_properties(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=h:1\nmetadata.max.age.ms=5\nclient.id=me\nacks=all\n")
    output = invoke("profile", "add", "own", "--file", str(file), "-X", "client.id=you").stdout
    assert output.splitlines() == [
        "not stored, because commands do not use it: metadata.max.age.ms, acks",
        "profile own is selected",
    ]
    assert invoke("profile", "show").stdout == "own (selected)\n  client.id=you\n  brokers=h:1\n"
    assert "-X KEY=VALUE or --file" in invoke("profile", "add", "new", status=2).stderr
    file.write_text("a=\\u00\n")
    assert "four hexadecimal digits" in (
        invoke("profile", "add", "new", "--file", str(file), status=2).stderr
    )


def test_profile_add_reads_names_of_librdkafka_and_hides_password(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.username=bob\nsasl.password=brush\n"
    )
    invoke("profile", "add", "own", "--file", str(file))
    shown = invoke("profile", "show").stdout
    assert "sasl.username=bob" in shown
    assert "brush" not in shown


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("security.protocol=SASL", "line 2: security.protocol=SASL is not supported"),
        ("sasl.username=bob", "line 2: sasl.username needs sasl.password; set both"),
        ("bootstrap.servers=h:", "line 2: invalid address 'h:'"),
    ],
)
def test_profile_add_names_line_of_invalid_setting(
    tmp_path: Path, line: str, expected: str
) -> None:
    file = tmp_path / "client.properties"
    protocol = (
        "" if "protocol" in line else "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN"
    )
    file.write_text(f"client.id=me\n{line}\n{protocol}\n")
    output = invoke("profile", "add", "own", "--file", str(file), status=2).stderr
    assert expected in output.replace("\n", " ")
    assert "-X" not in output


@pytest.mark.parametrize("url", ["http://alice:hunter2@host:8081", "alice:hunter2/x@host:8081"])
def test_profile_hides_user_of_registry_url(url: str) -> None:
    write_profiles("p", {"p": {"schema.registry.url": url}})
    for command in (["show", "p"], ["list", "-f", "wide"], ["list", "-f", "json"]):
        output = invoke("profile", *command).stdout
        assert "hunter2" not in output
        assert "[hidden]@host:8081" in output


def test_profile_add_rejects_invalid_registry_without_showing_it() -> None:
    for setting in ("schema.registry.url=alice:hunter2@host", "basic.auth.user.info=hunter2"):
        output = invoke("profile", "add", "p", "-X", setting, status=2).output
        assert "hunter2" not in output
        assert f"Invalid value for {setting.partition('=')[0]}: " in output


def test_profile_show_hides_secrets() -> None:
    ends = (".password", ".secret", ".key", ".jaas.config", ".user.info")
    secrets = {name for name in SETTINGS if name.endswith(ends)}
    assert len(secrets) == 8
    write_profiles("all", {"all": {name: f"value-of-{name}" for name in SETTINGS}})
    output = invoke("profile", "show", "all").stdout
    for name in SETTINGS:
        shown = "[hidden]" if name in secrets else f"value-of-{name}"
        assert f"{name}={shown}" in output.split()
    for form in ("wide", "json", "yaml"):
        assert "value-of-sasl.jaas.config" not in invoke("profile", "list", "-o", form).stdout


def test_profiles_can_be_created_listed_and_selected() -> None:
    assert "no profiles exist" in invoke("profile", "list").stderr
    invoke("profile", "add", "a b", "-X", 'client.id=say "x"', "-X", "brokers=h:1")
    output = invoke("profile", "add", "c", "-X", "brokers=h:2").stdout
    assert output == (
        "profile c is added; profile a b stays selected, change that with `kbroker profile use c`\n"
    )
    assert invoke("profile", "list").stdout.splitlines() == [
        "SELECTED  NAME  BROKERS  SECURITY-PROTOCOL",
        "*         a b   h:1      PLAINTEXT",
        "          c     h:2      PLAINTEXT",
    ]
    assert "did you mean 'a b'?" in invoke("profile", "use", "ab", status=2).stderr
    invoke("profile", "use", "-")
    assert "*" not in invoke("profile", "list").stdout
    assert "no profile is selected" in invoke("profile", "show", status=2).stderr


def test_profile_add_rejects_existing_name_and_invalid_settings() -> None:
    invoke("profile", "add", "p", "-X", "brokers=h:1")
    output = invoke("profile", "add", "p", "-X", "brokers=h:2", status=2).stderr
    assert "profile 'p' already exists; change it with `kbroker profile edit`" in output
    assert "invalid address" in invoke("profile", "add", "q", "-X", "brokers=h:", status=2).stderr
    output = invoke("profile", "add", "-X", "brokers=h:1", "--", "-", status=2).stderr
    assert "'-' cannot be the name" in output
    assert read_profiles() == ("p", {"p": {"brokers": "h:1"}})


def test_profile_edit_sets_and_removes_settings() -> None:
    write_profiles("", {"p": {"brokers": "h:1", "client.id": "me"}})
    output = invoke("profile", "edit", "p", "-X", "brokers=h:2", "--unset", "client.id").stdout
    assert output == "profile p is changed\n"
    assert read_profiles() == ("", {"p": {"brokers": "h:2"}})
    assert "unchanged" in invoke("profile", "edit", "p", "-X", "brokers=h:2").stdout
    assert "did you mean 'client.id'" in (
        invoke("profile", "edit", "p", "--unset", "client.ip", status=2).stderr
    )
    assert "unknown profile 'q'" in invoke("profile", "edit", "q", status=2).stderr


def set_editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Make $VISUAL a program that changes `text`, the contents of the edited file."""
    program = tmp_path / "editor.py"
    program.write_text(
        "import sys, pathlib\n"
        "file = pathlib.Path(sys.argv[1])\n"
        f"text = file.read_text()\n{code}\nfile.write_text(text + chr(10))\n"
    )
    monkeypatch.setenv("VISUAL", f"{sys.executable} {program}")


def test_profile_edit_without_options_opens_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profiles("p", {"p": {"brokers": "h:1", "sasl.jaas.config": 'a "b" c;'}, "q": {}})
    set_editor(monkeypatch, tmp_path, "text = text.replace('h:1', 'h:2')")
    assert invoke("profile", "edit", "p").stdout == "profile p is changed\n"
    changed = {"brokers": "h:2", "sasl.jaas.config": 'a "b" c;'}
    assert read_profiles() == ("p", {"p": changed, "q": {}})


def test_profile_edit_reports_invalid_settings_of_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profiles("", {"p": {"brokers": "h:2"}})
    set_editor(monkeypatch, tmp_path, "text = text.replace('\"brokers\" =', 'broker =')")
    output = invoke("profile", "edit", "p", status=2).stderr
    assert "profile 'p' is unchanged" in output
    assert "did you mean 'brokers'?" in output
    set_editor(monkeypatch, tmp_path, "text += 'client-id = 1'")
    assert "expected a value in quotes" in invoke("profile", "edit", "p", status=2).stderr
    set_editor(monkeypatch, tmp_path, "text = 'brokers'")
    assert "is unchanged" in invoke("profile", "edit", "p", status=2).stderr
    assert read_profiles()[1] == {"p": {"brokers": "h:2"}}


def test_profile_edit_on_terminal_reopens_editor_after_invalid_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = []

    def edit(text: str, extension: str) -> str | None:
        opened.append((text, extension))
        return {1: text.replace("h:1", "h:"), 2: text.replace("h:", "h:2")}.get(len(opened))

    monkeypatch.setattr("click.edit", edit)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert _edited("p", {"brokers": "h:1"}) == {"brokers": "h:2"}
    assert opened[1][0].startswith("# Invalid value for brokers: invalid address 'h:'")
    assert _edited("p", {"brokers": "h:1"}) == {"brokers": "h:1"}


def test_profile_delete_asks_before_it_deletes() -> None:
    write_profiles("b", {"a": {}, "b": {}, "c": {}})
    assert "--yes" in invoke("profile", "delete", "a", status=2).stderr
    output = invoke("profile", "delete", "b", "a", "--yes").stdout
    assert output == "profile b is deleted; no profile is selected\nprofile a is deleted\n"
    assert read_profiles() == ("", {"c": {}})
    assert "unknown profile 'b'" in invoke("profile", "delete", "c", "b", "--yes", status=2).stderr


@pytest.mark.parametrize("location", ["file/profiles.toml", "directory"])
def test_profile_add_reports_unwritable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    """The test uses paths that even root cannot write."""
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / location))
    monkeypatch.setattr("kbroker.cli.profile.read_profiles", lambda: ("", {}))
    output = invoke("profile", "add", "p", "-X", "brokers=h:1", status=1).stderr
    assert f"{tmp_path / location}: cannot write it" in output
    assert f"name another file with {FILE_VARIABLE}" in output
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["directory", "file"]
    monkeypatch.undo()
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / location))
    assert "cannot read it" in invoke("profile", "list", status=2).stderr


def test_commands_report_unreadable_profile_file(tmp_path: Path) -> None:
    (tmp_path / "profiles.toml").write_text("current = ")
    assert "correct or delete the file" in invoke("topic", "list", status=2).stderr


def test_interrupted_write_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "profiles.toml"))
    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_profiles("a", {"a": {"sasl.password": "secret"}})
    assert not [*tmp_path.iterdir()]
