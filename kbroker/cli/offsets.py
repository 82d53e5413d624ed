"""Offset specs of the command line: `start`, `end`, `47`, `+3`, `-2`, `@TIME`, and ranges.

TIME is 13 digits (ms), 9 or 10 digits (s), `YYYY-MM-DD`, RFC 3339, or a duration such as `-48h`,
which is relative to now. In a range that starts with a time, the second duration is relative to the
first time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from kbroker.client.offset_spec import END, START, Kind, OffsetSpec
from kbroker.protocol.records import TIMESTAMP_MAX, TIMESTAMP_MIN
from kbroker.text.durations import parse_duration
from kbroker.text.times import utc_text

# A sign and a number with a unit.
_DURATION = re.compile(r"([+-]?)(\d.*[a-z])")
FORMS = "start, end, 47, +3 (after the start), -2 (before the end), @TIME"


class BadOffsetSpec(ValueError):
    """A string that is not an offset spec; the message lists the valid forms."""


def parse_offset_spec(text: str, now_ms: int) -> OffsetSpec:
    """Parse one offset spec.

    Raises:
        BadOffsetSpec: The text has no valid form.
    """
    if text in ("start", "end"):
        return START if text == "start" else END
    if text.startswith("@"):
        return OffsetSpec(Kind.TIME, parse_time(text[1:], now_ms))
    if not re.fullmatch(r"[+-]?\d{1,19}", text):
        hint = f"did you mean {time}? " if (time := _meant_time(text, now_ms)) else ""
        raise BadOffsetSpec(
            f"{text!r} is not an offset; {hint}valid: {FORMS}; `kbroker help offsets` describes them"
        )
    number = int(text)
    if text.startswith("+"):
        return OffsetSpec(Kind.START, number)
    return OffsetSpec(Kind.END, number) if text.startswith("-") else OffsetSpec(Kind.OFFSET, number)


def _meant_time(text: str, now_ms: int) -> str | None:
    """Return the spec that a time or duration without @ stands for, or None."""
    try:
        _parse_time(text, now_ms)
    except BadOffsetSpec:
        return None
    return f"@-{text.lstrip('+-')}" if _DURATION.fullmatch(text) else f"@{text}"


def parse_past_spec(text: str, now_ms: int) -> OffsetSpec:
    """Parse an offset spec of a command for which a time in the future is a mistake.

    A time in the future means the end of the partition, so that `@3d` instead of `@-3d` would
    affect all records.

    Raises:
        BadOffsetSpec: The text has no valid form, or is a time in the future.
    """
    spec = parse_offset_spec(text, now_ms)
    if spec.is_after(now_ms):
        length = text[1:].lstrip("+")
        hint = f"did you mean @-{length}?" if _DURATION.fullmatch(length) else "use end"
        raise BadOffsetSpec(f"{text!r} is in the future ({utc_text(spec.value)}); {hint}")
    return spec


def first_record_text(spec: OffsetSpec) -> str | None:
    """Return the record that a time selects, for previews; None if the spec is not a time."""
    if spec.kind != Kind.TIME:
        return None
    return f"first record at or after {utc_text(spec.value)}"


def parse_time(text: str, now_ms: int) -> int:
    """Parse a TIME and return milliseconds since the epoch.

    Raises:
        BadOffsetSpec: The text is not a time, or outside the 64-bit range.
    """
    ms = _parse_time(text, now_ms)
    if not TIMESTAMP_MIN <= ms <= TIMESTAMP_MAX:
        raise BadOffsetSpec(f"{text!r} is outside the range of 64-bit timestamps ({ms} ms)")
    return ms


def _parse_time(text: str, now_ms: int) -> int:
    if re.fullmatch(r"\d{13}", text):
        return int(text)
    if re.fullmatch(r"\d{9,10}", text):
        return int(text) * 1000
    try:
        if match := _DURATION.fullmatch(text):
            seconds = parse_duration(match[2])
            return now_ms + round(seconds * 1000) * (-1 if match[1] == "-" else 1)
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadOffsetSpec(
            f"{text!r} is not a time; valid: 13 digits (ms), 10 digits (s), 2026-01-31, "
            "2026-01-31T12:00:00Z, or a duration such as -48h"
        ) from None
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_range(text: str, now_ms: int) -> tuple[OffsetSpec, OffsetSpec | None]:
    """Parse a start and an end (None: no end).

    A single offset spec is the start; `:47` starts at the beginning and ends at 47.

    Raises:
        BadOffsetSpec: A part has no valid form, or the end is before the start.
    """
    first, last = _parse_range(text, now_ms)
    if last is not None and first.kind == last.kind and last.value < first.value:
        raise BadOffsetSpec(f"range {text!r} is reversed: its end is before its start")
    return first, last


def _parse_range(text: str, now_ms: int) -> tuple[OffsetSpec, OffsetSpec | None]:
    timed = text.startswith("@")
    for match in re.finditer(":", text):
        left, right = text[: match.start()], text[match.end() :]
        try:
            first = START if left in ("", "@") else parse_offset_spec(left, now_ms)
            since_ms = first.value if first.kind == Kind.TIME else now_ms
            is_time = timed and not right.startswith("@") and right not in ("", "start", "end")
            return first, parse_offset_spec(f"@{right}" if is_time else right, since_ms)
        except BadOffsetSpec:
            continue  # this colon is part of a time
    return parse_offset_spec(text, now_ms), None
