"""Settings of this pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from my_pipeline.settings import setting
from my_pipeline.topics import TopicSettings


@dataclass(frozen=True, kw_only=True)
class Conf(TopicSettings):
    """Topics and time windows."""

    orders: str = setting("orders", "topic to read")
    totals: str = setting("totals", "compacted topic for the results")
    rejected: str = setting("rejected", "topic for late orders and invalid records")
    window: str = setting("1 hour", "length of a window")
    lateness: str = setting("1 hour", "how much older an order may be than the newest one")
    ahead: str = setting("1 hour", "how far an order's time may be ahead of its record's timestamp")
