"""Commands with a schema registry."""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

from click.testing import Result

from ..commands import Cli
from ..schemas.client import RegistryClient
from .records import lines_of


class Registered(NamedTuple):
    """Commands of a broker with a registry, and a client of the registry."""

    cli: Cli
    registry: RegistryClient

    @property
    def url(self) -> str:
        return f"http://{self.registry.endpoint}"

    async def write(self, *rows: dict[str, Any]) -> None:
        """Write lines of NDJSON to topic `t`."""
        await self.cli("topic", "produce", "t", "--json", stdin="\n".join(map(json.dumps, rows)))

    async def consume(self, *flags: str) -> Result:
        """Read topic `t` to its end with the registry."""
        return await self.cli("topic", "consume", "t", "-o", ":end", "--registry", self.url, *flags)

    async def rows(self, *flags: str) -> list[dict[str, Any]]:
        return lines_of((await self.consume(*flags)).stdout)


def framed(schema_id: int, body: bytes) -> bytes:
    """Return data after Confluent's prefix with a schema ID."""
    return b"\0" + schema_id.to_bytes(4, "big") + body


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()
