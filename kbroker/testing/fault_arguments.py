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
    """Valid values of one argument: types and limits. The items of a list have the first type."""

    kinds: tuple[type, ...]
    least: float = -math.inf
    most: float = math.inf


NUMBER_TYPES = (int, float)
# Arguments of `new_rule`: criteria of the requests, and the error of the response.
TARGET_ARGUMENTS: Mapping[str, ArgumentType] = {
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
CALL_TARGET_ARGUMENTS: Mapping[str, ArgumentType] = {
    "method": ArgumentType((str, list)),
    "path": ArgumentType((str,)),
    "subject": ArgumentType((str,)),
    "error": ArgumentType((int,)),
    "at": ArgumentType((str,)),
}

# Arguments that all faults have: effect and schedule.
SCHEDULE_ARGUMENTS: Mapping[str, ArgumentType] = {
    "effect": ArgumentType((str,)),
    "ms": ArgumentType(NUMBER_TYPES, 0),
    "on_call": ArgumentType((int,), 1),
    "times": ArgumentType((int,), 1),
    "always": ArgumentType((bool,)),
    "probability": ArgumentType(NUMBER_TYPES, 0, 1),
    "seed": ArgumentType((int,)),
    "optional": ArgumentType((bool,)),
}

# Arguments of a fault of the schema registry.
REGISTRY_FAULT_ARGUMENTS: Mapping[str, ArgumentType] = {
    **CALL_TARGET_ARGUMENTS,
    **SCHEDULE_ARGUMENTS,
}

# Arguments of a fault of the Kafka API. By default it hits the next matching request, once.
FAULT_ARGUMENTS: Mapping[str, ArgumentType] = {
    **TARGET_ARGUMENTS,
    **SCHEDULE_ARGUMENTS,
    "bit": ArgumentType((int,), 0, BIT_MAX),
    "until": ArgumentType((str,)),
}

# Effects by name, other than `error`, which has its own argument.
EFFECTS = {each.value: each for each in Effect if each not in (Effect.ERROR, Effect.HOOK)}
# Effects that require another argument.
REQUIRED_BY_EFFECT = {"delay": "ms", "throttle": "ms"}


def parse_rule(arguments: Arguments) -> Rule:
    """Create the rule of a fault from arguments; the rule is not armed.

    Raises:
        ValueError: An argument is unknown or invalid; the message lists the valid ones.
    """
    arguments = _check_arguments(arguments, FAULT_ARGUMENTS)
    target = {name: value for name, value in arguments.items() if name in TARGET_ARGUMENTS}
    if isinstance(target.get("versions"), list):
        target["versions"] = _parse_versions(target["versions"])
    rule = new_rule(target.pop("api", None), **target)
    if "effect" in arguments:
        rule.effect = _parse_effect(arguments, EFFECTS)
    rule.bit = arguments.get("bit", 0)
    rule.until = api_key(arguments["until"]) if "until" in arguments else None
    _set_schedule(rule, arguments, always=rule.until is not None)
    check_effect(rule)
    return rule


def parse_call_rule(arguments: Arguments) -> CallRule:
    """Create the rule of a schema registry fault from arguments; the rule is not armed.

    Raises:
        ValueError: An argument is unknown or invalid; the message lists the valid ones.
    """
    arguments = _check_arguments(arguments, REGISTRY_FAULT_ARGUMENTS)
    target = {name: value for name, value in arguments.items() if name in CALL_TARGET_ARGUMENTS}
    rule = new_call_rule(target.pop("method", None), **target)
    if "effect" in arguments:
        rule.effect = _parse_effect(arguments, {each.value: each for each in CALL_EFFECTS})
    _set_schedule(rule, arguments)
    return rule


def _check_arguments(arguments: Arguments, known: Mapping[str, ArgumentType]) -> Arguments:
    """Check arguments, and return the arguments that are not None."""
    present = {name: value for name, value in arguments.items() if value is not None}
    for name, value in present.items():
        _check_argument(name, value, known)
    return present


def _check_argument(name: str, value: Any, known: Mapping[str, ArgumentType]) -> None:
    expected = known.get(name)
    if expected is None:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else f" (valid: {', '.join(known)})"
        raise ValueError(f"a fault has no {name!r}{hint}")
    # Not isinstance: True is not a valid integer here.
    if type(value) not in expected.kinds:
        kinds = " or ".join(kind.__name__ for kind in expected.kinds)
        raise ValueError(f"{name} must be {kinds}, not {value!r}")
    if isinstance(value, list):
        for each in value:
            if type(each) is not expected.kinds[0]:
                raise ValueError(
                    f"{name} must be a list of {expected.kinds[0].__name__}, not {value}"
                )
    elif type(value) in NUMBER_TYPES:
        check_number(name, value, expected.least, expected.most)


def _parse_versions(bounds: list[Any]) -> range:
    match bounds:
        case [int(first), int(last)]:
            return range(first, last + 1)
    raise ValueError(f"versions must be an integer or [first, last], not {bounds}")


def _parse_effect(arguments: Arguments, known: Mapping[str, Effect]) -> Effect:
    name = arguments["effect"]
    if "error" in arguments:
        raise ValueError("a fault has either an error or another effect; remove one of them")
    if name not in known:
        raise ValueError(f"there is no effect {name!r} (valid: {', '.join(known)})")
    required = REQUIRED_BY_EFFECT.get(name)
    if required is not None and required not in arguments:
        raise ValueError(f"effect {name}: {required} is missing; add it")
    return known[name]


def _set_schedule(rule: AnyRule, arguments: Arguments, *, always: bool = False) -> None:
    rule.milliseconds = arguments.get("ms", 0)
    rule.first = arguments.get("on_call", 1)
    rule.probability = arguments.get("probability", 1.0)
    by_chance = "probability" in arguments
    rule.random = random.Random(arguments.get("seed", 0))
    always = always or arguments.get("always", False) or by_chance
    rule.count = arguments.get("times", math.inf if always else 1)
    rule.may_stay_unfired = arguments.get("optional", False) or by_chance
