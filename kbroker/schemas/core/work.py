"""Tasks of the schema workers: work whose duration depends on the text of a client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from .errors import RegistryError, invalid_schema
from .formats import Texts, parse, serialized
from .registry import CheckResult, CheckTask, check
from .value_readers import values_of
from .values import Content

# Maximum number of characters of earlier versions, with their references, in one task.
BATCH_CHARACTERS = 512 * 1024


class Serialize(NamedTuple):
    """A task: create the descriptor of a Protobuf file."""

    content: Content
    texts: Texts


class Vet(NamedTuple):
    """A task: check that a schema can be parsed within the limits, before the broker parses it."""

    content: Content
    texts: Texts


class Encode(NamedTuple):
    """A task: encode JSON documents by a schema.

    Attributes:
        documents: The documents in UTF-8.
        schema_id: ID of the schema.
    """

    content: Content
    texts: Texts
    documents: tuple[bytes, ...]
    schema_id: int


class Mismatched(NamedTuple):
    """Result of an `Encode` task with a document that does not match the schema."""

    position: int
    reason: str


class Rejected(NamedTuple):
    """Result of a task whose schema the registry rejects."""

    code: int
    message: str


class Failed(NamedTuple):
    """Result of a task that raised an unexpected exception."""

    error: str


Task: TypeAlias = CheckTask | Serialize | Vet | Encode
Result: TypeAlias = CheckResult | str | tuple[bytes, ...] | Mismatched | Rejected | Failed | None


def run(task: Task) -> Result:
    """Run one task. Errors are returned, because pickle cannot restore all exceptions."""
    try:
        match task:
            case CheckTask():
                return check(task)
            case Serialize():
                return serialized(task.content, task.texts)
            case Encode():
                return _encode(task)
            case Vet():
                parse(task.content, task.texts)
                values_of(task.content, task.texts)
                return None
    except RecursionError:
        error = invalid_schema("nested too deeply")
        return Rejected(error.code, error.message)
    except RegistryError as rejection:
        return Rejected(rejection.code, rejection.message)
    except MemoryError:
        raise
    except Exception as unexpected:  # noqa: BLE001 (a schema must not stop the worker)
        return Failed(repr(unexpected))


def _encode(task: Encode) -> tuple[bytes, ...] | Mismatched:
    # Encoders import packages that other tasks do not need.
    from .value_writers import ValueWriter, writer_of
    from .value_writing import Mismatch

    writer, encoded = ValueWriter(writer_of(task.content, task.texts), task.schema_id, ""), []
    for position, document in enumerate(task.documents):
        try:
            encoded.append(writer.encode(document))
        except Mismatch as mismatch:
            return Mismatched(position, str(mismatch))
    return tuple(encoded)


def batches(task: CheckTask) -> Iterator[CheckTask]:
    """Split a comparison with many versions into short tasks; yield at least one task."""
    batch: list[int] = []
    size = 0
    for index, (old, texts) in enumerate(task.earlier):
        characters = len(old.content.text) + sum(map(len, texts.values()))
        if batch and size + characters > BATCH_CHARACTERS:
            yield _batch_task(task, batch)
            batch, size = [], 0
        batch.append(index)
        size += characters
    yield _batch_task(task, batch)


def _batch_task(task: CheckTask, batch: list[int]) -> CheckTask:
    earlier = tuple(task.earlier[each] for each in batch)
    return task._replace(earlier=earlier)


def characters_of(task: Task) -> int:
    """Return the number of characters of all schemas and documents of a task."""
    size = len(task.content.text) + sum(map(len, task.texts.values()))
    if isinstance(task, Encode):
        size += sum(map(len, task.documents))
    if isinstance(task, CheckTask):
        for old, texts in task.earlier:
            size += len(old.content.text) + sum(map(len, texts.values()))
    return size
