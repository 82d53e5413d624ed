"""Compatibility levels and modes over a real broker and a real socket."""

from __future__ import annotations

from .client import registry
from .test_api import BROKEN, PLAIN, WIDER


async def test_compatibility_level_applies_globally_or_to_one_subject() -> None:
    async with registry() as (_, [client]):
        assert await client.get("/config") == {"compatibilityLevel": "BACKWARD"}
        assert await client.refusal("GET", "/config/s") == 40408
        config = await client.get("/config/s?defaultToGlobal=true")
        assert config == {"compatibilityLevel": "BACKWARD"}
        assert await client.refusal("PUT", "/config", {"compatibility": "SOME"}) == 42203
        assert await client.put("/config/s", {"compatibility": "none"}) == {"compatibility": "NONE"}
        await client.register("s", PLAIN)
        await client.register("s", BROKEN)
        await client.register("other", PLAIN)
        assert (await client.try_to_register("other", BROKEN)).status == 409
        assert (await client.delete("/config/s"))["compatibilityLevel"] == "NONE"
        assert (await client.try_to_register("s", WIDER)).status == 200


async def test_modes_restrict_operations() -> None:
    async with registry() as (_, [client]):
        await client.register("s", PLAIN)
        assert await client.get("/mode") == {"mode": "READWRITE"}
        assert await client.refusal("PUT", "/mode", {"mode": "SOME"}) == 42204
        assert await client.refusal("PUT", "/mode/s", {"mode": "IMPORT"}) == 42205
        await client.put("/mode/s", {"mode": "READONLY"})
        assert (await client.try_to_register("s", WIDER)).body["error_code"] == 42205
        # this changes nothing
        assert await client.register("s", PLAIN) == 1
        assert await client.delete("/mode/s") == {"mode": "READONLY"}
        assert await client.refusal("GET", "/mode/s") == 40409
        assert (await client.try_to_register("s", WIDER, id=70)).body["error_code"] == 42205
        await client.put("/mode/new", {"mode": "IMPORT"})
        assert await client.register("new", BROKEN, id=70, version=5) == 70
        assert (await client.try_to_register("new", WIDER, id=70)).body["error_code"] == 42205
        assert await client.register("s", WIDER) == 71
