"""The settings of this pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from my_pipeline.settings import setting
from my_pipeline.topics import TopicSettings


@dataclass(frozen=True, kw_only=True)
class Conf(TopicSettings):
    """Its topics, and when a session is over."""

    clicks: str = setting("clicks", "topic to read")
    sessions: str = setting("sessions", "compacted topic for the results")
    rejected: str = setting("rejected", "topic for clicks that are too late, and for no clicks")
    gap: str = setting("30 minutes", "a visitor who does nothing for so long has left")
    lateness: str = setting("15 minutes", "how long after its time a click may arrive")
    ahead: str = setting("1 hour", "how far a click's time may be ahead of its record's")
    patience: str = setting("3 hours", "how long a session is kept open for other partitions")
