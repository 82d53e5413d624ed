"""Division of the file descriptors of a process."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from kbroker.runtime.descriptors import CONNECTIONS_ENOUGH, LOGS_MAX, RESERVE, divide

RAISE = """
import resource
from kbroker.runtime.descriptors import raise_limit, shares
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
raise_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE), shares() == (64, 128, 6))
"""


@pytest.mark.parametrize("limit", [4, 16, 64, 256, 1024, 20_000, 1 << 20, sys.maxsize])
def test_descriptors_are_divided_with_a_reserve(limit: int) -> None:
    logs, connections, helpers = divide(limit)
    reserve = min(limit // 4, RESERVE)
    assert 0 < logs <= LOGS_MAX
    assert connections > 0
    assert logs + connections <= limit - reserve
    assert 0 <= helpers * 2 < max(reserve, 1)


def test_ten_thousand_logs_stay_open_if_limit_allows() -> None:
    assert divide(20_000).logs > 10_000
    assert divide(20_000).connections >= CONNECTIONS_ENOUGH
    assert divide(1024) == (256, 640, 16), "connections get more if the limit is low"


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 256, reason="a low hard limit")
def test_soft_limit_is_raised_to_hard_limit() -> None:
    run = subprocess.run([sys.executable, "-c", RAISE], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["(256,", "256)", "True"]
