"""Log lines of several services: read into one form, counted, kept in full."""

LOGS, BAD, ERRORS = "logs", "logs.bad", "errors"

LEVELS = ("DEBUG", "INFO", "WARN", "ERROR", "FATAL")
ERROR_LEVELS = ("ERROR", "FATAL")
