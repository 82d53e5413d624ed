"""The ``kbroker init`` command: creates projects from templates."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kbroker.pipelines.templates import KINDS, TemplateError, copy_project

from .lazy import CommandGroup
from .output import say

_FAILED = 1


@click.group(cls=CommandGroup)
def init() -> None:
    """Create a project from a template."""


@init.command(epilog=" ".join(f"{kind}: {what}" for kind, what in KINDS.items()))
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("name")
def pipeline(kind: str, name: str) -> None:
    """Create the directory NAME with a Spark pipeline, its settings and its tests.

    The pipeline works with any Kafka, and its output has no duplicates after a restart. Its tests
    run it on a broker in memory.
    """
    try:
        directory = copy_project(kind, name, Path())
    except TemplateError as error:
        say(f"kbroker init: {error}", err=True)
        sys.exit(_FAILED)
    say(f"{directory}/README.md describes the project. To run its tests:")
    say(f"  cd {directory} && pip install -r requirements.txt && pytest")
