"""Fields of request bodies that several routes have in common."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.client.offset_spec import Kind, OffsetSpec
from kbroker.config import ConfigError, Scope, plain_numbers
from kbroker.protocol.primitives import INT64_MAX
from kbroker.text.documents import Json
from kbroker.text.times import utc_text

from .answers import PARTITION_MAX, ApiError
from .api import field

# Maximum number of names or partitions in one list of a request.
ITEMS_MAX = 2_000


def is_dry_run(body: Mapping[str, Json]) -> bool:
    """Return True unless the request says `"dry_run": false`, so that changes are explicit."""
    return field(body, "dry_run", bool, True)


def names(body: Mapping[str, Json], name: str, most: int) -> list[str]:
    """Return a list of different strings.

    Args:
        body: Request body.
        name: Name of the field.
        most: Maximum number of strings.

    Raises:
        ApiError: The field is not a list of 1 to `most` strings.
    """
    found = body.get(name)
    if not isinstance(found, list) or not 1 <= len(found) <= most:
        raise ApiError(400, f"{name} must be a list of 1 to {most} strings")
    strings = [each for each in found if isinstance(each, str) and each]
    if len(strings) < len(found):
        raise ApiError(400, f"{name} must contain non-empty strings only")
    return list(dict.fromkeys(strings))


def strings_by_name(body: Mapping[str, Json], name: str, most: int) -> dict[str, str]:
    """Return an object whose values are strings; empty if the field is missing. Raises ApiError."""
    found = body.get(name, {})
    if not isinstance(found, dict) or len(found) > most:
        raise ApiError(400, f"{name} must be an object with at most {most} fields")
    strings = {key: value for key, value in found.items() if isinstance(value, str)}
    if len(strings) < len(found):
        raise ApiError(400, f"{name} must contain strings only")
    return strings


def plain_settings(body: Mapping[str, Json], name: str, most: int, scope: Scope) -> dict[str, str]:
    """Return an object of settings, with values such as "2d" as plain numbers. Raises ApiError."""
    try:
        return plain_numbers(scope, strings_by_name(body, name, most))
    except ConfigError as error:
        raise ApiError(400, str(error)) from None


def integers(value: Json, name: str, most: int = PARTITION_MAX) -> list[int]:
    """Return a list of integers.

    Args:
        value: The list.
        name: Name of the field, for errors.
        most: Maximum value.

    Raises:
        ApiError: The value is not a list of 1 to `ITEMS_MAX` integers from 0 to `most`.
    """
    if isinstance(value, list) and 1 <= len(value) <= ITEMS_MAX:
        found = [each for each in value if type(each) is int and 0 <= each <= most]
        if len(found) == len(value):
            return found
    raise ApiError(400, f"{name} must be a list of 1 to {ITEMS_MAX} integers from 0 to {most}")


def integers_by_number(body: Mapping[str, Json], name: str, most: int) -> dict[int, int]:
    """Return an object such as `{"0": 47}` as integers; empty if the field is missing.

    Args:
        body: Request body.
        name: Name of the field.
        most: Maximum value.

    Raises:
        ApiError: A key or value is not an integer.
    """
    found = body.get(name, {})
    if not isinstance(found, dict) or len(found) > ITEMS_MAX:
        raise ApiError(400, f"{name} must be an object with at most {ITEMS_MAX} fields")
    return {
        partition_number(key, name): integers([value], f"{name}[{key[:20]!r}]", most)[0]
        for key, value in found.items()
    }


def partition_number(text: str, name: str) -> int:
    """Return a partition number that is a key of an object. Raises ApiError."""
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= PARTITION_MAX):
        raise ApiError(400, f"{name}: {text[:20]!r} is not a partition number")
    return int(text)


def topic_selection(body: Mapping[str, Json]) -> dict[str, set[int] | None]:
    """Return the field `topics`: partition numbers by topic, None for all partitions.

    Raises:
        ApiError: The field has another form.
    """
    found = body.get("topics", {})
    if not isinstance(found, dict) or len(found) > ITEMS_MAX:
        raise ApiError(400, 'topics must be an object such as {"orders": [0, 1], "payments": null}')
    return {
        topic: None if numbers is None else set(integers(numbers, f"topics[{topic[:249]!r}]"))
        for topic, numbers in found.items()
    }


def past_offset_spec(body: Mapping[str, Json], now_ms: int) -> OffsetSpec:
    """Return the offset spec of the fields `to` and `value`.

    A time in the future means the end of the partition, so it is a mistake for changes of offsets.

    Args:
        body: Request body.
        now_ms: Current time, in ms since the epoch.

    Raises:
        ApiError: A field is invalid, or the spec is a time after `now_ms`.
    """
    kind, value = field(body, "to", str), field(body, "value", int, 0)
    kinds = {each.value: each for each in Kind}
    if kind not in kinds:
        raise ApiError(400, f"invalid to {kind[:40]!r} (valid: {', '.join(kinds)})")
    if not -INT64_MAX <= value <= INT64_MAX:
        raise ApiError(400, "value must be a 64-bit integer")
    spec = OffsetSpec(kinds[kind], value)
    if spec.is_after(now_ms):
        text = f"value {value} is in the future ({utc_text(value)}); did you mean a past time? "
        raise ApiError(400, f'{text}To select the end, use "to": "end"')
    return spec
