"""Sessions of a web site's visitors, from a click stream that is out of order."""

CLICKS, SESSIONS, LATE = "clicks", "sessions", "clicks.late"

GAP_MINUTES = 10
"""A visitor who does nothing for so long has left; what comes then is another session."""

LATE_MINUTES = 15
"""A click that arrives longer than this after it happened counts in no session: it is late."""
