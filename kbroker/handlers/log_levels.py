"""Dynamic log levels of this process (KIP-412).

All brokers of a process share the levels. A restart resets them to the configured levels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

ROOT = "root"
# Kafka's level names with the numbers of Python's levels.
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}


def loggers() -> dict[str, logging.Logger]:
    """Return the root logger, and the loggers of kbroker's modules and packages, by name."""
    names = [
        each for each in logging.root.manager.loggerDict if each.partition(".")[0] == "kbroker"
    ]
    return {**{name: logging.getLogger(name) for name in sorted(names)}, ROOT: logging.root}


def levels_in_effect() -> dict[str, str]:
    """Return the effective level of each logger."""
    return {name: _name_of(each.getEffectiveLevel()) for name, each in loggers().items()}


def own_levels() -> dict[str, str]:
    """Return the levels that are set on loggers themselves."""
    return {name: _name_of(each.level) for name, each in loggers().items() if each.level}


def set_levels(levels: Mapping[str, str]) -> None:
    """Set the levels of loggers, and let all other loggers inherit theirs."""
    now = own_levels()
    for name, each in loggers().items():
        wanted = levels.get(name)
        if wanted != now.get(name) and (wanted or name != ROOT):
            each.setLevel(LEVELS[wanted] if wanted else logging.NOTSET)


def _name_of(level: int) -> str:
    return next((name for name, number in LEVELS.items() if number >= level), "FATAL")
