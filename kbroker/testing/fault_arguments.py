"""Faults as arguments of a command, for programs that cannot call the methods of `Fault`."""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from .arguments import check_number
from .fault import BIT_MAX, check_effect, new_rule
from .names import api_key
from .registry_calls import CallRule
from .registry_fault import CALL_EFFECTS, new_call_rule
from .rules import Rule
from .schedule import AnyRule, Effect

Arguments = dict[str, Any]


class ArgumentType(NamedTuple):
    """Valid values of one argument: types and limits. Items of a list have the first type."""

    kinds: tuple[type, ...]
    least: float = -math.inf
    most: float = math.inf


NUMBER = (int, float)
# Arguments of `new_rule`: which requests match, and the error to answer with.
TARGET: Mapping[str, ArgumentType] = {
    "api": ArgumentType((str, list)),
    "error": ArgumentType((str, int)),
    "at": ArgumentType((str,)),
    "topic": ArgumentType((str,)),
    "partition": ArgumentType((int, list), 0),
    "group": ArgumentType((str,)),
    "client_id": ArgumentType((str,)),
    "transactional_id": ArgumentType((str,)),
    "resource": ArgumentType((str,)),
    "top_level": ArgumentType((bool,)),
    "versions": ArgumentType((int, list), 0),
}

# Arguments of `new_call_rule`.
CALL_TARGET: Mapping[str, ArgumentType] = {
    "method": ArgumentType((str, list)),
    "path": ArgumentType((str,)),
    "subject": ArgumentType((str,)),
    "error": ArgumentType((int,)),
    "at": ArgumentType((str,)),
}

# Arguments that all faults have: effect and schedule.
SCHEDULE: Mapping[str, ArgumentType] = {
    "effect": ArgumentType((str,)),
    "ms": ArgumentType(NUMBER, 0),
    "on_call": ArgumentType((int,), 1),
    "times": ArgumentType((int,), 1),
    "always": ArgumentType((bool,)),
    "probability": ArgumentType(NUMBER, 0, 1),
    "seed": ArgumentType((int,)),
    "optional": ArgumentType((bool,)),
}

# Arguments of a fault of the schema registry.
CALL_WORDS: Mapping[str, ArgumentType] = {**CALL_TARGET, **SCHEDULE}

# Arguments of a fault of the Kafka API. By default it hits the next matching request, once.
WORDS: Mapping[str, ArgumentType] = {
    **TARGET,
    **SCHEDULE,
    "bit": ArgumentType((int,), 0, BIT_MAX),
    "until": ArgumentType((str,)),
}

# Effects by name, other than `error`, which has its own argument.
EFFECTS = {each.value: each for each in Effect if each not in (Effect.ERROR, Effect.HOOK)}
# Effects that require another argument.
NEEDED = {"delay": "ms", "throttle": "ms"}


def parse_rule(words: Arguments) -> Rule:
    """Create the rule of a fault from arguments; the rule is not armed.

    Raises:
        ValueError: An argument is unknown or invalid; the message lists the valid ones.
    """
    words = _checked(words, WORDS)
    target = {word: value for word, value in words.items() if word in TARGET}
    if isinstance(target.get("versions"), list):
        target["versions"] = _versions(target["versions"])
    rule = new_rule(target.pop("api", None), **target)
    if "effect" in words:
        rule.effect = _effect(words, EFFECTS)
    rule.bit = words.get("bit", 0)
    rule.until = api_key(words["until"]) if "until" in words else None
    _schedule(rule, words, always=rule.until is not None)
    check_effect(rule)
    return rule


def parse_call_rule(words: Arguments) -> CallRule:
    """Create the rule of a schema registry fault from arguments; the rule is not armed.

    Raises:
        ValueError: An argument is unknown or invalid; the message lists the valid ones.
    """
    words = _checked(words, CALL_WORDS)
    target = {word: value for word, value in words.items() if word in CALL_TARGET}
    rule = new_call_rule(target.pop("method", None), **target)
    if "effect" in words:
        rule.effect = _effect(words, {each.value: each for each in CALL_EFFECTS})
    _schedule(rule, words)
    return rule


def _checked(words: Arguments, known: Mapping[str, ArgumentType]) -> Arguments:
    """Check arguments, and return those that are not None."""
    said = {word: value for word, value in words.items() if value is not None}
    for word, value in said.items():
        _check(word, value, known)
    return said


def _check(name: str, value: Any, known: Mapping[str, ArgumentType]) -> None:
    word = known.get(name)
    if word is None:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else f" (valid: {', '.join(known)})"
        raise ValueError(f"a fault has no {name!r}{hint}")
    # Not isinstance: True is not a valid integer here.
    if type(value) not in word.kinds:
        kinds = " or ".join(kind.__name__ for kind in word.kinds)
        raise ValueError(f"{name} must be {kinds}, not {value!r}")
    if isinstance(value, list):
        for each in value:
            if type(each) is not word.kinds[0]:
                raise ValueError(f"{name} must be a list of {word.kinds[0].__name__}, not {value}")
    elif type(value) in NUMBER:
        check_number(name, value, word.least, word.most)


def _versions(bounds: list[Any]) -> range:
    match bounds:
        case [int(first), int(last)]:
            return range(first, last + 1)
    raise ValueError(f"versions must be an integer or [first, last], not {bounds}")


def _effect(words: Arguments, known: Mapping[str, Effect]) -> Effect:
    name = words["effect"]
    if "error" in words:
        raise ValueError("a fault has either an error or another effect; remove one of them")
    if name not in known:
        raise ValueError(f"there is no effect {name!r} (valid: {', '.join(known)})")
    needed = NEEDED.get(name)
    if needed is not None and needed not in words:
        raise ValueError(f"effect {name}: {needed} is missing; add it")
    return known[name]


def _schedule(rule: AnyRule, words: Arguments, *, always: bool = False) -> None:
    rule.milliseconds = words.get("ms", 0)
    rule.first = words.get("on_call", 1)
    rule.probability = words.get("probability", 1.0)
    by_chance = "probability" in words
    rule.random = random.Random(words.get("seed", 0))
    always = always or words.get("always", False) or by_chance
    rule.count = words.get("times", math.inf if always else 1)
    rule.may_stay_unfired = words.get("optional", False) or by_chance
