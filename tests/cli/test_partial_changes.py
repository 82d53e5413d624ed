"""Commands that change several objects and end after some of them."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kbroker.cli.output import NAMES_SHOWN_MAX, reported_changes
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..commands import Cli


def reject_second_call(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Let the second call of a client function that changes something fail."""
    module_name, _, name = path.rpartition(".")
    module = importlib.import_module(f"kbroker.client.{module_name}")
    function: Callable[..., Awaitable[object]] = getattr(module, name)
    calls = []

    async def wrapped(*args: Any, **named: Any) -> object:
        if not named.get("validate_only"):
            calls.append(args)
        if len(calls) == 2:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "not allowed")
        return await function(*args, **named)

    monkeypatch.setattr(module, name, wrapped)


OFFSETS = [f"group seek --yes {name} --to start --topic t" for name in ("a", "b", "c")]
USERS = [f"security user add {name}" for name in ("a", "b", "c")]
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


@pytest.mark.parametrize(
    ("before", "command", "function", "changed", "rest"),
    [
        (
            ["topic create a b c"],
            "topic alter-config a b c --set retention.ms=1d",
            "configs.alter_configs",
            "a",
            "b, c",
        ),
        (
            [],
            "group alter-config a b --set share.heartbeat.interval.ms=6s",
            "configs.alter_configs",
            "a",
            "b",
        ),
        (
            ["topic create t", *OFFSETS],
            "group seek --yes a b c --to end",
            "seek.commit_offsets",
            "a",
            "b, c",
        ),
        (
            ["topic create t", *OFFSETS],
            "group offset-delete --yes a b c --topic t",
            "offset_deletion.delete_offsets",
            "a",
            "b, c",
        ),
        (
            ["topic create t", *OFFSETS],
            "group delete --yes a b c",
            "groups.delete_groups",
            "a",
            "b, c",
        ),
        (
            USERS,
            "security user remove --yes a b c",
            "scram_users.remove_scram_password",
            f"a ({SHA_256})",
            f"b ({SHA_256}), c ({SHA_256})",
        ),
        (
            [],
            f"security user add d --mechanism {SHA_256} --mechanism {SHA_512}",
            "scram_users.set_scram_password",
            SHA_256,
            SHA_512,
        ),
    ],
)
async def test_command_that_ends_early_names_changed_and_remaining_objects(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    before: list[str],
    command: str,
    function: str,
    changed: str,
    rest: str,
) -> None:
    for line in before:
        await cli(*line.split(), stdin="pencil\n")
    reject_second_call(monkeypatch, function)
    output = await cli(*command.split(), stdin="pencil\n", status=1)
    lines = output.stderr.splitlines()
    assert f"kbroker: changed: {changed}" in lines
    assert f"kbroker: not confirmed as changed: {rest}; repeat the command for these" in lines
    assert "not allowed" in lines[-1]


def test_report_of_one_object_is_the_error_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="reason"), reported_changes(["a"]):
        raise ValueError("reason")
    assert capsys.readouterr() == ("", "")


def test_report_after_interrupt_limits_number_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"t{index}" for index in range(NAMES_SHOWN_MAX + 5)]
    with pytest.raises(KeyboardInterrupt), reported_changes(names):
        raise KeyboardInterrupt
    changed, rest = capsys.readouterr().err.splitlines()
    assert changed == "kbroker: changed: nothing"
    assert rest.endswith(f"t{NAMES_SHOWN_MAX - 1} and 5 more; repeat the command for these")


def test_complete_changes_are_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with reported_changes(["a", "b"]) as changed:
        changed += ["a", "b"]
    assert capsys.readouterr() == ("", "")
