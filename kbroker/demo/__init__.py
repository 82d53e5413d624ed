"""``kbroker demo``: runs a real data set through the broker and Spark, and checks every result.

The demo runs three processes: the broker, a producer (`produce`) that streams the departures from
New York's airports in 2013, and a Spark job (`job`) that joins them with the hourly weather and
maintains departure-delay statistics per day, carrier and airport. Finally, all results are read
back (`readback`) and compared (`verify`) with results that plain Python computes from the same
files (`truth`).
"""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot start or continue; the message names the next action."""


class StartError(DemoError):
    """A requirement of the demo is missing or does not start."""
