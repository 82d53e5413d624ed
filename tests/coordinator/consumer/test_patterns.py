"""Cost limits of the regular expressions of clients."""

from __future__ import annotations

import time

import pytest

from kbroker.coordinator.consumer.patterns import MATCH_STEPS_MAX, compile_pattern
from kbroker.coordinator.consumer.target_assignments import (
    PATTERNS_AT_ONCE,
    STEPS_AT_ONCE,
    _is_fast,
    _matches,
)
from kbroker.protocol.errors import ErrorCode, KafkaError

from .groups import assignment_in, harness

TOPIC_NAME_MAX = 249
LONGEST_NAME = "x" + "a" * (TOPIC_NAME_MAX - 1)
# Patterns that take seconds to match one topic name, or 0.1 s to compile.
EXPENSIVE = {
    "optional characters": "(a?.?)" * 1600 + "b",
    "repeated optional character": "(.?){1000}b",
    "repeated stars": "(.*a?){1000}b",
    "nested stars": "((a*.?)*|(.*a)*)*" * 300 + "b",
    "optional classes": "(?:.?.?.?.?.?.?.?.?a?a?a?a?){500}b",
    "Unicode classes": r"\pL" * 3000,
    "negated Unicode classes": r"[\PL\pN]?" * 1000,
}
# The most expensive pattern of this kind that is accepted.
ACCEPTED = "(a?.?)" * 190 + "b"


@pytest.mark.parametrize("name", EXPENSIVE)
def test_expensive_pattern_is_rejected_quickly(name: str) -> None:
    began = time.thread_time()
    with pytest.raises(KafkaError) as caught:
        compile_pattern(EXPENSIVE[name])
    assert time.thread_time() - began < 0.1
    assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("pattern", [ACCEPTED, "(.?){150}b", "((a?.?)*(.a)*)*" * 50 + "b"])
def test_accepted_pattern_matches_longest_topic_name_in_bounded_steps(pattern: str) -> None:
    compiled = compile_pattern(pattern)
    assert compiled.steps(TOPIC_NAME_MAX) <= MATCH_STEPS_MAX
    began = time.thread_time()
    assert not compiled.matches(LONGEST_NAME)
    assert time.thread_time() - began < 0.15


def test_long_list_of_names_is_accepted() -> None:
    names = [f"orders-{number * 7919 % 100_000}.eu" for number in range(500)]
    pattern = compile_pattern("|".join(name.replace(".", r"\.") for name in names))
    assert pattern.is_names
    assert pattern.matches(names[-1])
    assert not pattern.matches("orders")
    assert pattern.steps(TOPIC_NAME_MAX) < MATCH_STEPS_MAX


def test_text_that_is_too_long_for_pattern_is_rejected() -> None:
    pattern = compile_pattern(ACCEPTED)
    with pytest.raises(KafkaError, match="too complex for a text of 32000 bytes"):
        pattern.matches("a" * 32_000)
    assert compile_pattern("a.*").matches("a" * 32_000)


def test_expensive_patterns_are_resolved_in_small_pieces() -> None:
    names = [f"{number}{LONGEST_NAME}"[:TOPIC_NAME_MAX] for number in range(20)]
    assert not _is_fast([ACCEPTED], names)
    assert not _is_fast([f"t{number}" for number in range(PATTERNS_AT_ONCE + 1)], ["t"])
    steps = compile_pattern(ACCEPTED).steps(TOPIC_NAME_MAX)
    pieces = sum(1 for _ in _matches([ACCEPTED], names))
    assert pieces >= len(names) * steps // (STEPS_AT_ONCE + steps)
    assert sum(1 for _ in _matches(["t1", "t2", "t3"], ["t"])) >= 3, "one per compiled pattern"


def test_expensive_pattern_is_resolved_in_background() -> None:
    h = harness()
    for number in range(20):
        h.topics.create(f"{number:02}{LONGEST_NAME}"[:TOPIC_NAME_MAX], 1)
    h.topics.create("aab", 1)
    response = h.beat("a", 0, subscribed_topic_regex=ACCEPTED)
    assert (response.member_epoch, assignment_in(h, response)) == (1, {})
    assert assignment_in(h, h.beat("a", 1)) == {"aab": [0]}
