"""Settings of this pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from my_pipeline.settings import setting
from my_pipeline.topics import TopicSettings


@dataclass(frozen=True, kw_only=True)
class Conf(TopicSettings):
    """Topics, and the maximum age of the table."""

    orders: str = setting("orders", "topic to read")
    customers: str = setting("customers", "compacted topic with the table, keyed by customer")
    enriched: str = setting("enriched", "compacted topic for the results")
    unmatched: str = setting("", "topic for orders without a customer; empty: same as enriched")
    rejected: str = setting("rejected", "topic for invalid records")
    customers_age_seconds: int = setting(0, "maximum age of the table in s; 0: read it per batch")
