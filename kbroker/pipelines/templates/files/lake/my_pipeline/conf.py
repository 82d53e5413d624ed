"""The settings of this pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from my_pipeline.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class Conf(Settings):
    """Its topic, and its lake."""

    orders: str = setting("orders", "topic to read")
    lake: str = setting("lake", "directory of this machine for the files")
    max_offsets: int = setting(1_000_000, "how many records a batch has at most")
    every_seconds: int = setting(10, "time between batches; 0: what is there now, then end")
