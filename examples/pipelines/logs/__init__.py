"""Logs of several services: parsed, counted, and archived in full."""

LOGS, BAD, ERRORS = "logs", "logs.bad", "errors"

LEVELS = ("DEBUG", "INFO", "WARN", "ERROR", "FATAL")
ERROR_LEVELS = ("ERROR", "FATAL")
