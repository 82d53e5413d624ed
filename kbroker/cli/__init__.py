"""The `kbroker` command. Each subcommand is imported when it is called."""

from __future__ import annotations

from typing import Any

import click

from kbroker import __version__
from kbroker.text.printable import accept_all_characters, printable

from .lazy import LazyGroup

COMMANDS = {
    "serve": ("kbroker.cli.serve:serve", "Run a broker."),
    "run": ("kbroker.cli.run:run", "Run a command beside a broker of its own."),
    "health": ("kbroker.cli.health:health", "Ask a broker whether it answers."),
    "topic": ("kbroker.cli.topic:topic", "Create, show, change, read and write topics."),
    "group": ("kbroker.cli.group:group", "Show and move consumer groups."),
    "cluster": (
        "kbroker.cli.cluster:cluster",
        "Show brokers, what is wrong, disks, transactions; stop and start nodes.",
    ),
    "config": ("kbroker.cli.config:config", "Explain settings, and show those of a server."),
    "security": ("kbroker.cli.security:security", "Show, make and remove users and ACLs; say why."),
    "log": (
        "kbroker.cli.log:log",
        "Work on the files of a partition; the broker must not run.",
    ),
    "audit": (
        "kbroker.cli.audit:audit",
        "Say what a topic holds, and compare it with another one or a lake.",
    ),
    "replay": (
        "kbroker.cli.replay:replay",
        "Write records again: of a topic, of lines of JSON, or of the lake.",
    ),
    "fault": ("kbroker.cli.fault:fault", "Let a broker fail on demand, for tests."),
    "clock": ("kbroker.cli.clock:clock", "Let time pass in a broker, for tests."),
    "explain": (
        "kbroker.cli.explain:explain",
        "Say why a group rebalanced or a partition is offline.",
    ),
    "control": (
        "kbroker.cli.control:control",
        "Give a broker any command of the control protocol.",
    ),
    "compat": (
        "kbroker.kafka_tools.compat:compat",
        "Run kafka-topics and other tools as Kafka's scripts take them.",
    ),
    "profile": ("kbroker.cli.profile:profile", "Name clusters, and choose one."),
    "completion": ("kbroker.cli.completion:completion", "Print a shell's completion script."),
    "init": ("kbroker.cli.init:init", "Create a project from a template: a Spark pipeline."),
    "spark": (
        "kbroker.cli.spark:spark",
        "Get Spark to talk to Kafka: its connector, and what is wrong.",
    ),
    "lake": ("kbroker.cli.lake:lake", "Archive topics to Parquet files, each record exactly once."),
    "demo": (
        "kbroker.cli.demo:demo",
        "Stream a year of flights through the broker and Spark, and check every figure.",
    ),
}


_EXTRA = "Got unexpected extra argument"


class Kbroker(LazyGroup):
    """The whole command line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line, with output that no locale can stop."""
        accept_all_characters()
        return super().main(*args, **kwargs)

    def invoke(self, context: click.Context) -> object:
        """Run a command; what it ends with may name things that clients have named.

        A file or directory that the system refuses is no reason for a traceback.
        """
        try:
            return super().invoke(context)
        except OSError as error:
            if error.filename is None:
                raise
            said = f"{error.filename}: {error.strerror}"
            raise click.ClickException(printable(said)) from None
        except click.ClickException as error:
            message = printable(error.message, keep="\n\t")
            if message.startswith(_EXTRA):  # such as a password with a space in it
                message = "unexpected extra arguments (not shown: they may be secrets)"
            error.message = message  # type: ignore[misc]
            raise


def _tell_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Looked for only when it is asked: all other commands would wait for that, too."""
    if is_asked:
        from importlib.util import find_spec

        from .output import say

        is_compiled = find_spec("kbroker.compiled__mypyc") is not None
        say(f"kbroker {__version__}{', compiled' if is_compiled else ''}")
        context.exit()


@click.group(cls=Kbroker, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="For commands that speak to a cluster: set brokers or client.id.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_tell_version,
    help="Show the version and exit.",
)
@click.pass_context
def main(context: click.Context, settings: tuple[str, ...]) -> None:
    """A Kafka broker that needs no JVM and no Docker."""
    if settings:
        from .target import parse_settings

        context.obj = parse_settings(settings)
