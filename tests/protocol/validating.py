"""Complete validation of a batch, which Produce requests run in steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from kbroker.protocol.errors import KafkaError
from kbroker.protocol.log_validator import LogValidator, validate_at_once
from kbroker.protocol.primitives import Buffer
from kbroker.protocol.records import (
    DEFAULT_RULES,
    BatchHeader,
    ProduceRules,
)

Stored: TypeAlias = tuple[memoryview, BatchHeader]


def as_stored(
    buffer: Buffer | None, version: int, now_ms: int, rules: ProduceRules = DEFAULT_RULES
) -> Stored:
    """Return the batch as its log stores it, and its header.

    If `validate_at_once` has a result, it must be the one of the validation in steps.
    """
    stored = _outcome(partial(_validate_in_steps, buffer, version, now_ms, rules))
    if rules.codec is None and buffer is not None:
        at_once = _outcome(partial(validate_at_once, memoryview(buffer), version, now_ms, rules))
        assert at_once is None or _comparable(at_once) == _comparable(stored)
    assert stored is not None
    if isinstance(stored, KafkaError):
        raise stored
    return stored


def _validate_in_steps(
    buffer: Buffer | None, version: int, now_ms: int, rules: ProduceRules
) -> Stored:
    validator = LogValidator(buffer, version, now_ms, rules)
    while not validator.step():
        pass
    return validator.result()


def _outcome(validate: Callable[[], Stored | None]) -> Stored | KafkaError | None:
    try:
        return validate()
    except KafkaError as error:
        return error


def _comparable(outcome: Stored | KafkaError | None) -> object:
    return (outcome.code, outcome.message) if isinstance(outcome, KafkaError) else outcome


def validate_produced(
    buffer: Buffer | None, version: int, now_ms: int, rules: ProduceRules = DEFAULT_RULES
) -> BatchHeader:
    """Return the header that the batch is stored with."""
    return as_stored(buffer, version, now_ms, rules)[1]


NOW = 1_700_000_000_000


HOUR = 3_600_000
