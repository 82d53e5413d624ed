"""Work on schemas that a client's text makes long: it runs where it can be killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from .errors import RegistryError, invalid_schema
from .formats import Texts, parse, serialized
from .registry import Checked, Compared, check
from .values import Content
from .values_read import values_of

BATCH_CHARACTERS = 512 * 1024
"""Characters of earlier versions, with what they refer to, that are compared in one task."""


class Serialize(NamedTuple):
    """Make the descriptor of a file of Protobuf."""

    content: Content
    texts: Texts


class Vet(NamedTuple):
    """Find out whether a schema can be read in bounded time: who reads values needs it in memory."""

    content: Content
    texts: Texts


class Refused(NamedTuple):
    """The registry's answer to a schema that it does not take."""

    code: int
    message: str


class Failed(NamedTuple):
    """A task came to an end that nobody has thought of."""

    error: str


Task: TypeAlias = Compared | Serialize | Vet
Result: TypeAlias = Checked | str | Refused | Failed | None


def run(task: Task) -> Result:
    """Do one task. Returns instead of raising, because pickle does not restore all errors."""
    try:
        match task:
            case Compared():
                return check(task)
            case Serialize():
                return serialized(task.content, task.texts)
            case Vet():
                parse(task.content, task.texts)
                values_of(task.content, task.texts)
                return None
    except RecursionError:
        error = invalid_schema("it is nested too deep")
        return Refused(error.code, error.message)
    except RegistryError as refused:
        return Refused(refused.code, refused.message)
    except MemoryError:
        raise
    except Exception as unexpected:  # noqa: BLE001 (a schema must not end the process)
        return Failed(repr(unexpected))


def batches(compared: Compared) -> Iterator[Compared]:
    """Split a comparison with many versions into tasks that are short each; there is at least one."""
    batch: list[int] = []
    size = 0
    for index, (old, texts) in enumerate(compared.earlier):
        characters = len(old.content.text) + sum(map(len, texts.values()))
        if batch and size + characters > BATCH_CHARACTERS:
            yield _part(compared, batch)
            batch, size = [], 0
        batch.append(index)
        size += characters
    yield _part(compared, batch)


def _part(compared: Compared, batch: list[int]) -> Compared:
    earlier = tuple(compared.earlier[each] for each in batch)
    return compared._replace(earlier=earlier)


def characters_of(task: Task) -> int:
    """Return how much text a task is about."""
    size = len(task.content.text) + sum(map(len, task.texts.values()))
    if isinstance(task, Compared):
        for old, texts in task.earlier:
            size += len(old.content.text) + sum(map(len, texts.values()))
    return size
