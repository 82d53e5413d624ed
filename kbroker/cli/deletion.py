"""Deletion of objects that have names: `topic delete` and `group delete`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .confirmation import Change, Preview, question_about
from .output import say
from .target import Target, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.topic_details import Row
    from kbroker.protocol.errors import ErrorCode, KafkaError


class DeletedKind(NamedTuple):
    """A kind of object that a command deletes.

    Attributes:
        noun: Name of the kind, which is the key of the name in a row.
        losses: What a deletion also destroys, such as " with all records".
        missing: Error code for an object that does not exist.
        line: Returns the line of a row in the preview.
        delete: Deletes objects; returns the error of each, or None if it was deleted.
        error_text: Returns the message of an error.
    """

    noun: str
    losses: str
    missing: ErrorCode
    line: Callable[[Row], str]
    delete: Callable[[ClusterClient, Sequence[str]], Awaitable[Mapping[str, KafkaError | None]]]
    error_text: Callable[[KafkaError], str]


def delete_objects(
    target: Target, change: Change, kind: DeletedKind, found: Sequence[Row], *, if_exists: bool
) -> None:
    """Delete objects after a confirmation, and print the result. Exit with status 1 on errors.

    Args:
        target: The cluster.
        change: Options of the command.
        kind: Kind of the objects.
        found: A row for each object, which says what the deletion destroys.
        if_exists: Ignore objects that do not exist.
    """
    chosen = [str(row[kind.noun]) for row in found]
    question = question_about("Delete", chosen, kind.noun, kind.losses)
    preview = Preview(question, found, [*map(kind.line, found)], is_harmless=not found)
    if not change.confirm(preview):
        return
    errors = run(target, lambda cluster: kind.delete(cluster, chosen)) if chosen else {}
    rejected = {
        name: error
        for name, error in errors.items()
        if error is not None and not (if_exists and error.code == kind.missing)
    }
    rows = [
        row | {"error": rejected[name].code.name if name in rejected else None}
        for name, row in zip(chosen, found, strict=True)
    ]
    deleted = [name for name, error in errors.items() if error is None]
    change.report(rows, lambda _: [f"{name}: deleted" for name in deleted])
    for name, error in rejected.items():
        say(f"kbroker: {name}: {kind.error_text(error)}", err=True)
    if rejected:
        raise SystemExit(1)
