"""Metrics of hosts, one reading per second, aggregated in windows of 10 s, 1 min and 1 h."""

METRICS = "metrics"

# Width of the windows, by topic.
WIDTHS = {"metrics.10s": "10 seconds", "metrics.1m": "1 minute", "metrics.1h": "1 hour"}
