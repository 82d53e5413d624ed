"""Errors of the server startup, and their messages."""

from __future__ import annotations

from kbroker.net.server import CannotListen
from kbroker.protocol.errors import KafkaError
from kbroker.runtime.memory_errors import NEXT_ACTION, OutOfMemory, is_out_of_memory


class StartFailed(Exception):
    """The server cannot start. The message contains the cause and the next action."""


# Errors that are reported to the operator without a traceback.
REPORTED_ERRORS = (StartFailed, KafkaError, CannotListen, OSError, ValueError)


def cause_of(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first error in a group that is reported without a traceback.

    Raises:
        ExceptionGroup: The group itself, if it contains no such error.
    """
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            return cause_of(error)
        if isinstance(error, REPORTED_ERRORS) or is_out_of_memory(error):
            return error
    raise group


def text_of(error: Exception) -> str:
    """Return the message of an error that `cause_of` returned."""
    if isinstance(error, KafkaError) and error.message:
        return error.message
    if is_out_of_memory(error) and not isinstance(error, OutOfMemory):
        return f"memory ran out ({error!r}): {NEXT_ACTION}"
    return str(error)
