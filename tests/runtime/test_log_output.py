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


def test_name_with_line_break_cannot_forge_log_line() -> None:
    line = TextFormatter("%(levelname)s %(message)s").format(
        record("g\n12:00 ERROR all is lost\x1b[2J")
    )
    assert line == "INFO group g\\n12:00 ERROR all is lost\\x1b[2J"


def test_traceback_with_line_break_cannot_forge_log_line() -> None:
    forged = "12:00 ERROR all is lost\x1b[2J\u009b"
    try:
        raise ValueError(f"group g\n{forged}")
    except ValueError:
        failed = logging.LogRecord("x", logging.ERROR, __file__, 1, "oh", (), sys.exc_info())
    text = TextFormatter("%(levelname)s %(message)s").format(failed)
    first, *continuation = text.split("\n")
    assert first == "ERROR oh"
    assert all(line.startswith("  ") and line.isprintable() for line in continuation)
    assert continuation[-1] == r"  12:00 ERROR all is lost\x1b[2J\x9b"


def test_json_lines_have_level_logger_and_message() -> None:
    event = json.loads(JsonFormatter().format(record("g\n")))
    assert (event["level"], event["logger"], event["message"]) == (
        "info",
        "kbroker.coordinator_runtime.groups",
        "group g\n",
    )


def test_log_lines_have_node_id() -> None:
    text = TextFormatter("%(name)s%(node)s: %(message)s")
    with logged_as(2):
        assert text.format(record("g")) == "kbroker.coordinator_runtime.groups [node 2]: group g"
        assert json.loads(JsonFormatter().format(record("g")))["node"] == 2
    assert text.format(record("g")) == "kbroker.coordinator_runtime.groups: group g"
    assert "node" not in json.loads(JsonFormatter().format(record("g")))


class Marks(logging.Handler):
    """Log handler that records the node ID of each line."""

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
async def test_log_lines_have_node_id_if_process_has_several_nodes(
    nodes: int, expected: set[str]
) -> None:
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


def test_repeated_messages_are_rate_limited() -> None:
    seldom = RateLimitFilter(60)
    first, soon, later = record("a"), record("b"), record("c")
    first.exc_info = (OSError, OSError(24, "too many open files"), None)
    first.created, soon.created, later.created = 1000.0, 1059.9, 1060.0
    assert [bool(seldom.filter(each)) for each in (first, soon, later)] == [True, False, True]
    assert "OSError" not in JsonFormatter().format(first)


@pytest.mark.usefixtures("restored_logging")
def test_level_is_set_for_all_or_for_one_logger() -> None:
    set_up_logging(["warning", "kbroker.protocol=debug"], "text")
    assert logging.getLogger("kbroker.node.node").getEffectiveLevel() == logging.WARNING
    assert logging.getLogger("kbroker.protocol").getEffectiveLevel() == logging.DEBUG


@pytest.mark.usefixtures("restored_logging")
def test_unknown_level_error_lists_valid_levels() -> None:
    with pytest.raises(ValueError, match=r"invalid log level 'loud' \(valid: .*warning"):
        set_up_logging(["loud"], "text")
