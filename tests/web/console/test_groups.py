"""Consumer groups in the console."""

from __future__ import annotations

from urllib.parse import quote

from kbroker.client.groups import commit_offsets

from .consoles import console, record


async def test_group_offsets_are_previewed_and_reset_and_group_is_deleted() -> None:
    async with console() as client:
        await client.create_topic("t", *(record(b"v") for _ in range(9)))
        await commit_offsets(client.cluster, "g/with%odd", {("t", 0): 1})
        path = f"/groups/{quote('g/with%odd', safe='')}"
        target = {"to": "end", "value": -2}
        plan = (await client.post(f"{path}/seek", target)).json()
        assert plan["dry_run"] is True
        assert plan["partitions"][0]["new_offset"] == 7
        assert (await client.get(f"{path}/details"))["partitions"][0]["current_offset"] == 1
        assert (await client.post(f"{path}/seek", target | {"dry_run": False})).status == 200
        assert (await client.get(f"{path}/details"))["partitions"][0]["current_offset"] == 7
        assert (await client.post(f"{path}/delete")).status == 200
        assert (await client.ask(f"{path}/details")).status == 404
        wrongs: list[object] = [{"to": "nowhere"}, {"to": 1}, {"to": "end", "value": "x"}, []]
        for wrong in wrongs:
            assert (await client.post(f"{path}/seek", wrong)).status == 400
