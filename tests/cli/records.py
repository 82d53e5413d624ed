"""Parsers for records and offsets in the output of commands."""

from __future__ import annotations

import json
from typing import Any

from ..commands import Cli


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def values_in(cli: Cli, topic: str, *flags: str) -> list[str | None]:
    read = await cli("topic", "consume", topic, "-o", ":end", *flags)
    return [row["value"] for row in lines_of(read.stdout)]


def offsets(rows: list[dict[str, Any]]) -> dict[int, tuple[int | None, int]]:
    return {row["partition"]: (row["prior_offset"], row["new_offset"]) for row in rows}
