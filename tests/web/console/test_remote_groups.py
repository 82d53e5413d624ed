"""Consumer groups whose coordinator is another node."""

from __future__ import annotations

import pytest

from kbroker.client.groups import commit_offsets
from kbroker.web.console import remote_groups
from kbroker.web.console.trends import UNSEEN_MAX

from .trends import GROUPS, PARTITIONS, followed


async def test_groups_of_unresponsive_node_have_unknown_lag() -> None:
    async with followed() as setup:
        await setup.write(10)
        for group in GROUPS:
            await commit_offsets(setup.cluster, group, {("t", 0): 4})
        await setup.trends.sample()
        setup.broker.links.cut(1, 2)
        await setup.trends.sample()
        remote = set(GROUPS) - setup.local_groups
        assert {name: setup.trends.groups[name].lag for name in remote} == dict.fromkeys(remote)
        setup.broker.links.heal([(1, 2)])
        await setup.trends.sample()
        assert {setup.trends.groups[name].total.values()[-1] for name in remote} == {6}
        assert {setup.trends.groups[name].total.values()[-2] for name in remote} == {None}
        setup.broker.links.cut(1, 2)
        for _ in range(UNSEEN_MAX):
            await setup.trends.sample()
        assert setup.trends.groups.keys() == setup.local_groups


async def test_node_with_too_many_groups_is_skipped_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_groups, "GROUPS_MAX", 1)
    async with followed() as setup:
        await setup.write(1)
        for group in GROUPS:
            await commit_offsets(setup.cluster, group, {("t", 0): 1})
        assert len(setup.local_groups) < len(GROUPS) - 1
        for _ in range(2):
            await setup.trends.sample()
        assert setup.trends.groups.keys() == setup.local_groups


async def test_group_with_too_many_partitions_is_skipped_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_groups, "LARGE_GROUP_ROWS", 2)
    async with followed() as setup:
        await setup.write(1)
        for group in GROUPS:
            await commit_offsets(setup.cluster, group, {("t", at): 1 for at in range(PARTITIONS)})
        for _ in range(2):
            await setup.trends.sample()
            assert setup.trends.groups.keys() == setup.local_groups
