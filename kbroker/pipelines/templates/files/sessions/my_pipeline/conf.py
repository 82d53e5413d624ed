"""Settings of this pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from my_pipeline.settings import setting
from my_pipeline.topics import TopicSettings


@dataclass(frozen=True, kw_only=True)
class Conf(TopicSettings):
    """Topics and session timeouts."""

    clicks: str = setting("clicks", "topic to read")
    sessions: str = setting("sessions", "compacted topic for the results")
    rejected: str = setting("rejected", "topic for late clicks and invalid records")
    gap: str = setting("30 minutes", "time without clicks after which a session ends")
    lateness: str = setting("15 minutes", "maximum delay between a click's time and its arrival")
    ahead: str = setting("1 hour", "how far a click's time may be ahead of its record's timestamp")
    patience: str = setting("3 hours", "how long a session is kept open for other partitions")
