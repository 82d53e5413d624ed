"""Timeouts for events that are normally immediate, on a busy machine."""

from __future__ import annotations

# Maximum time for a process to print something or to exit.
PROCESS_SECONDS = 300
