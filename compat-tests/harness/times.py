"""When records of the tests are from."""

import time

BASE_MS = int(time.time() - 3600) * 1000
"""An hour ago: long before any other record, and younger than what retention lets go."""
