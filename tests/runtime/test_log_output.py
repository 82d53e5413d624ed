"""Log lines of the command line."""

import json
import logging
import sys
from functools import partial

import pytest

from kbroker.runtime.log_output import (
    JsonFormatter,
    RateLimitFilter,
    TextFormatter,
    logged_as,
    set_up_logging,
)

from ..brokers import started
from ..wire import connected, until


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord(
        "kbroker.coordinator_runtime.groups",
        logging.INFO,
        __file__,
        1,
        "group %s",
        (message,),
        None,
    )


def test_a_name_with_a_line_break_cannot_forge_a_log_line() -> None:
    line = TextFormatter("%(levelname)s %(message)s").format(
        record("g\n12:00 ERROR all is lost\x1b[2J")
    )
    assert line == "INFO group g\\n12:00 ERROR all is lost\\x1b[2J"


def test_nor_can_what_a_traceback_quotes() -> None:
    forged = "12:00 ERROR all is lost\x1b[2J\u009b"
    try:
        raise ValueError(f"group g\n{forged}")
    except ValueError:
        failed = logging.LogRecord("x", logging.ERROR, __file__, 1, "oh", (), sys.exc_info())
    text = TextFormatter("%(levelname)s %(message)s").format(failed)
    first, *rest = text.split("\n")
    assert first == "ERROR oh"
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    assert rest[-1] == r"  12:00 ERROR all is lost\x1b[2J\x9b"


def test_json_lines_carry_level_logger_and_message() -> None:
    event = json.loads(JsonFormatter().format(record("g\n")))
    assert (event["level"], event["logger"], event["message"]) == (
        "info",
        "kbroker.coordinator_runtime.groups",
        "group g\n",
    )


def test_lines_say_of_which_node_they_are() -> None:
    text = TextFormatter("%(name)s%(node)s: %(message)s")
    with logged_as(2):
        assert text.format(record("g")) == "kbroker.coordinator_runtime.groups [node 2]: group g"
        assert json.loads(JsonFormatter().format(record("g")))["node"] == 2
    assert text.format(record("g")) == "kbroker.coordinator_runtime.groups: group g"
    assert "node" not in json.loads(JsonFormatter().format(record("g")))


class Marks(logging.Handler):
    """Notes of which node each line is."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.add(TextFormatter("%(node)s").format(record))

    def are(self, count: int) -> bool:
        return len(self.seen) >= count


@pytest.mark.parametrize(
    ("nodes", "expected"), [(1, {""}), (3, {" [node 1]", " [node 2]", " [node 3]"})]
)
async def test_nodes_among_several_mark_what_they_say(nodes: int, expected: set[str]) -> None:
    marks = Marks()
    logger = logging.getLogger("kbroker.net.server")
    logger.addHandler(marks)
    try:
        async with started(nodes=nodes, max_connections=1) as broker:
            for number, each in enumerate(broker.nodes, 1):
                async with connected(each.endpoint), connected(each.endpoint):
                    await until(partial(marks.are, number))
    finally:
        logger.removeHandler(marks)
    assert marks.seen == expected


def test_what_is_told_all_the_time_is_logged_once_in_a_while() -> None:
    seldom = RateLimitFilter(60)
    first, soon, later = record("a"), record("b"), record("c")
    first.exc_info = (OSError, OSError(24, "too many open files"), None)
    first.created, soon.created, later.created = 1000.0, 1059.9, 1060.0
    assert [bool(seldom.filter(each)) for each in (first, soon, later)] == [True, False, True]
    assert "OSError" not in JsonFormatter().format(first)


@pytest.mark.usefixtures("restored_logging")
def test_levels_are_set_for_all_or_for_one_logger() -> None:
    set_up_logging(["warning", "kbroker.protocol=debug"], "text")
    assert logging.getLogger("kbroker.node.node").getEffectiveLevel() == logging.WARNING
    assert logging.getLogger("kbroker.protocol").getEffectiveLevel() == logging.DEBUG


@pytest.mark.usefixtures("restored_logging")
def test_an_unknown_level_says_which_there_are() -> None:
    with pytest.raises(ValueError, match=r"'loud' is no log level; there are .*warning"):
        set_up_logging(["loud"], "text")
