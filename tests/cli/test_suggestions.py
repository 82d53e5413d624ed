"""Suggestions for unknown commands."""

from __future__ import annotations

import pytest

from kbroker.cli.suggestions import EQUIVALENTS

from ..commands import invoke


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("txn", ["cluster txn"]),
        ("acl", ["security acl"]),
        ("client", ["explain client"]),
        ("broker", ["cluster info"]),
        ("produce t", ["topic produce"]),
        ("group lag g", ["group describe"]),
        ("group reset g", ["group seek"]),
        ("group reset-offsets g", ["group seek"]),
        ("create topic t", ["topic create"]),
        ("list topics", ["topic list"]),
        ("rm topic t", ["topic delete"]),
        ("topic trim-prefix t", ["topic trim"]),
        ("topic delete-records t", ["topic trim"]),
        ("topic rm t", ["topic delete"]),
        ("topic copy a b", ["replay"]),
        ("topic clients t", ["cluster clients"]),
        ("topic reassign t", ["topic move"]),
        ("cluster reassign", ["topic move"]),
        ("cluster elect-leaders", ["cluster rebalance"]),
        ("topic consum t", ["topic consume"]),
        ("cluster status", ["cluster health"]),
        ("cluster maintenance", ["cluster drain"]),
        ("explain billing", ["explain group billing", "explain client billing"]),
        ("security acl ls", ["security acl list"]),
        ("topik", ["topic"]),
    ],
)
def test_unknown_command_is_answered_with_meant_command(typed: str, meant: list[str]) -> None:
    words = " or ".join(f"`kbroker {each}`" for each in meant)
    assert f"; did you mean {words}?" in invoke(*typed.split(), status=2).stderr


def test_unknown_command_without_similar_command_gets_no_suggestion() -> None:
    assert invoke("xyzzy", status=2).stderr.endswith("No such command 'xyzzy'\n")


@pytest.mark.parametrize("command", sorted(set(EQUIVALENTS.values())))
def test_suggested_command_exists(command: str) -> None:
    invoke(*command.split(), "--help")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("explain --control x group billing", "explain group --control"),
        ("topic --json list", "topic list --json"),
        ("--before 3 topic trim t", "topic trim --before"),
    ],
)
def test_option_before_its_command_is_answered_with_its_place(typed: str, meant: str) -> None:
    output = " ".join(invoke(*typed.split(), status=2).stderr.split())
    assert f"give it after the command, such as `kbroker {meant}`" in output


def test_option_that_no_command_has_is_unknown() -> None:
    assert "No such option" in invoke("topic", "--xyzzy", "list", status=2).stderr
