"""What a start says when it cannot go on."""

from __future__ import annotations

from kbroker.net.server import CannotListen
from kbroker.protocol.errors import KafkaError
from kbroker.runtime.memory_errors import NEXT_ACTION, OutOfMemory, is_out_of_memory


class StartFailed(Exception):
    """The server cannot start; the message names the cause and the next action."""


ANSWERABLE = (StartFailed, KafkaError, CannotListen, OSError, ValueError)
"""Errors that a person can do something about."""


def cause_of(group: ExceptionGroup[Exception]) -> Exception:
    """The one error inside that a person can do something about; else the group is raised."""
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            return cause_of(error)
        if isinstance(error, ANSWERABLE) or is_out_of_memory(error):
            return error
    raise group


def text_of(error: Exception) -> str:
    """The message of such an error."""
    if isinstance(error, KafkaError) and error.message:
        return error.message
    if is_out_of_memory(error) and not isinstance(error, OutOfMemory):
        return f"memory ran out ({error!r}): {NEXT_ACTION}"
    return str(error)
