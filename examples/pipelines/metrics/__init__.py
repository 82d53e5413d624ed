"""Readings of hosts, one a second, made smaller: windows of ten seconds, a minute and an hour."""

METRICS = "metrics"

WIDTHS = {"metrics.10s": "10 seconds", "metrics.1m": "1 minute", "metrics.1h": "1 hour"}
"""The topic of each window."""
