"""``kbroker demo``: a real data set through the broker and Spark, checked to the last figure.

Three processes work side by side: the broker, a producer (`produce`) that streams the departures
from New York's airports in 2013, and a Spark job (`job`) that joins them with the weather of their
hour and keeps departure-delay figures per day, carrier and airport. Afterwards everything is read
back (`readback`) and compared (`verify`) with what plain Python computes from the same files
(`truth`).
"""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot start or go on; the message is one sentence that names what helps."""


class StartError(DemoError):
    """Something that the demo needs is missing or does not start."""
