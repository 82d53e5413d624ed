"""The settings of this pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from my_pipeline.settings import setting
from my_pipeline.topics import TopicSettings


@dataclass(frozen=True, kw_only=True)
class Conf(TopicSettings):
    """Its topics, and how old its table may be."""

    orders: str = setting("orders", "topic to read")
    customers: str = setting("customers", "compacted topic that is the table; key: the customer")
    enriched: str = setting("enriched", "compacted topic for the results")
    unmatched: str = setting("", "topic for orders without a customer; empty: as those with one")
    rejected: str = setting("rejected", "topic for records that are no orders")
    customers_age_seconds: int = setting(0, "read the table again after so long; 0: for each batch")
