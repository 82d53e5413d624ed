"""Timestamps of test records."""

import time

# One hour ago, in ms: older than all other records, but within the retention time.
BASE_MS = int(time.time() - 3600) * 1000
