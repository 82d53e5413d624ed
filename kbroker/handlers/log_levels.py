"""Log levels of this process, as Kafka shows and changes them while a broker runs (KIP-412).

They belong to the process: brokers that share one share them, and a restart forgets them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

ROOT = "root"
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
"""Kafka's names, and Python's numbers for them."""


def loggers() -> dict[str, logging.Logger]:
    """The root logger and all of kbroker, by name."""
    own = {
        name: each
        for name, each in logging.root.manager.loggerDict.items()
        if name.partition(".")[0] == "kbroker" and isinstance(each, logging.Logger)
    }
    return {**dict(sorted(own.items())), ROOT: logging.root}


def levels_in_effect() -> dict[str, str]:
    """The level that each logger obeys, its own or that of the nearest one above."""
    return {name: _name_of(each.getEffectiveLevel()) for name, each in loggers().items()}


def own_levels() -> dict[str, str]:
    """The levels of the loggers that have their own."""
    return {name: _name_of(each.level) for name, each in loggers().items() if each.level}


def set_levels(levels: Mapping[str, str]) -> None:
    """Give these loggers these levels, and all others that of the nearest one above."""
    now = own_levels()
    for name, each in loggers().items():
        wanted = levels.get(name)
        if wanted != now.get(name) and (wanted or name != ROOT):
            each.setLevel(LEVELS[wanted] if wanted else logging.NOTSET)


def _name_of(level: int) -> str:
    return next((name for name, number in LEVELS.items() if number >= level), "FATAL")
