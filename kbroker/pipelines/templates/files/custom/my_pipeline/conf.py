"""Settings of this pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from my_pipeline.settings import setting
from my_pipeline.topics import TopicSettings


@dataclass(frozen=True, kw_only=True)
class Conf(TopicSettings):
    """Topics."""

    source: str = setting("source", "topic to read")
    target: str = setting("target", "compacted topic for the results")
