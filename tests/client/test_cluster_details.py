"""Problems of a cluster, with their suggested fixes."""

from __future__ import annotations

import pytest

from kbroker.client.cluster_details import leaderless_problem


@pytest.mark.parametrize(
    ("replicas", "in_sync", "start", "lost"),
    [
        ([1, 2, 3], [2], "start broker 2", "if it cannot return, "),
        ([1, 2, 3], [2, 3], "start broker 2 or 3", "if none of them can return, "),
        ([2], [2], "start broker 2", "no other broker has a replica"),
        ([1, 2], [], "start broker 1 or 2", "no other broker has a replica"),
    ],
)
def test_fix_of_partition_without_leader_offers_unclean_election_only_with_other_replicas(
    replicas: list[int], in_sync: list[int], start: str, lost: str
) -> None:
    action = leaderless_problem("t-0", replicas, in_sync)["action"]
    assert action.startswith(f"{start}; {lost}")
    assert ("--election-type unclean" in action) is (set(replicas) > set(in_sync) != set())
