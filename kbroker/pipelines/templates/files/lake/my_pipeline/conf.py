"""Settings of this pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from my_pipeline.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class Conf(Settings):
    """Topic and lake."""

    orders: str = setting("orders", "topic to read")
    lake: str = setting("lake", "local directory for the files")
    max_offsets: int = setting(1_000_000, "maximum number of records per batch")
    every_seconds: int = setting(10, "interval between batches; 0: stop at the end of the topic")
