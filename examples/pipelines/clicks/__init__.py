"""Sessions of a web site's visitors, from a click stream that is out of order."""

CLICKS, SESSIONS, LATE = "clicks", "sessions", "clicks.late"

# Minutes without a click after which a session ends.
GAP_MINUTES = 10

# Maximum minutes between a click and its arrival; later clicks count in no session.
LATE_MINUTES = 15
