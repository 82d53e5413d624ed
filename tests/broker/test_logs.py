"""Log lines of the command line."""

import json
import logging
from collections.abc import Iterator

import pytest

from kbroker.logs import JsonFormatter, TextFormatter, set_up_logging


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord(
        "kbroker.groups", logging.INFO, __file__, 1, "group %s", (message,), None
    )


def test_a_name_with_a_line_break_cannot_forge_a_log_line() -> None:
    line = TextFormatter("%(levelname)s %(message)s").format(
        record("g\n12:00 ERROR all is lost\x1b[2J")
    )
    assert line == "INFO group g\\n12:00 ERROR all is lost\\x1b[2J"


def test_json_lines_carry_level_logger_and_message() -> None:
    event = json.loads(JsonFormatter().format(record("g\n")))
    assert (event["level"], event["logger"], event["message"]) == (
        "info",
        "kbroker.groups",
        "group g\n",
    )


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    kept = (root.handlers[:], root.level, logging.getLogger("kbroker").level)
    yield
    root.handlers[:] = kept[0]
    root.setLevel(kept[1])
    logging.getLogger("kbroker").setLevel(kept[2])
    logging.getLogger("kbroker.protocol").setLevel(logging.NOTSET)


@pytest.mark.usefixtures("restored_logging")
def test_levels_are_set_for_all_or_for_one_logger() -> None:
    set_up_logging(["warning", "kbroker.protocol=debug"], "text")
    assert logging.getLogger("kbroker.node").getEffectiveLevel() == logging.WARNING
    assert logging.getLogger("kbroker.protocol").getEffectiveLevel() == logging.DEBUG


@pytest.mark.usefixtures("restored_logging")
def test_an_unknown_level_says_which_there_are() -> None:
    with pytest.raises(ValueError, match=r"'loud' is no log level; there are .*warning"):
        set_up_logging(["loud"], "text")
