"""How long tests wait for what should happen at once, on a machine that does other work too."""

from __future__ import annotations

PROCESS_SECONDS = 300
"""For a program to say something, or to end."""
