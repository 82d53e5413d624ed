"""Validation of one batch to its end, as a Produce request has it in steps."""

from __future__ import annotations

from kbroker.protocol.log_validator import LogValidator
from kbroker.protocol.primitives import Buffer
from kbroker.protocol.records import DEFAULT_RULES, BatchHeader, ProduceRules


def as_stored(
    buffer: Buffer | None, version: int, now_ms: int, rules: ProduceRules = DEFAULT_RULES
) -> tuple[memoryview, BatchHeader]:
    """The batch as its log stores it, and its header."""
    validator = LogValidator(buffer, version, now_ms, rules)
    while not validator.step():
        pass
    return validator.result()


def validate_produced(
    buffer: Buffer | None, version: int, now_ms: int, rules: ProduceRules = DEFAULT_RULES
) -> BatchHeader:
    """The header that the batch is stored with."""
    return as_stored(buffer, version, now_ms, rules)[1]
