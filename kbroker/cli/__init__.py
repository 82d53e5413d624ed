"""The `kbroker` command. Each subcommand is imported when it is called."""

from __future__ import annotations

import os
import signal
from typing import Any

import click

from kbroker import __version__
from kbroker.runtime.deferred_imports import defer_imports
from kbroker.text.printable import accept_all_characters, printable

from .command_context import add_color_option
from .completion import VARIABLE
from .lazy import LazyGroup
from .streams import discard_output, open_missing_streams, reported_write_errors
from .terminal import Style, paint, uses_color

COMMANDS = {
    "serve": ("kbroker.cli.serve:serve", "Run a broker."),
    "run": ("kbroker.cli.run:run", "Run a command with a temporary broker."),
    "health": ("kbroker.cli.health:health", "Check that a broker responds."),
    "demo": (
        "kbroker.cli.demo:demo",
        "Stream a year of flights through the broker and Spark, and verify the results.",
    ),
    "topic": (
        "kbroker.cli.topic:topic",
        "Create, show and change topics; produce and consume records.",
    ),
    "group": ("kbroker.cli.group:group", "Show, reset and delete consumer groups."),
    "cluster": (
        "kbroker.cli.cluster:cluster",
        "Show brokers, problems, disks and transactions; stop and start nodes.",
    ),
    "registry": (
        "kbroker.cli.registry:registry",
        "List, register, check and delete schemas of a schema registry.",
    ),
    "config": (
        "kbroker.cli.config:config",
        "Explain settings; show and change the settings of a broker.",
    ),
    "explain": (
        "kbroker.cli.explain:explain",
        "Explain the state of a group, partition, transaction or client.",
    ),
    "security": (
        "kbroker.cli.security:security",
        "Manage users, delegation tokens and ACLs; explain decisions.",
    ),
    "log": ("kbroker.cli.log:log", "Work on the files of partitions; the broker must be stopped."),
    "audit": (
        "kbroker.cli.audit:audit",
        "Check the records of a topic, or compare them with another topic or a lake.",
    ),
    "replay": ("kbroker.cli.replay:replay", "Write records again from a topic, NDJSON or a lake."),
    "lake": ("kbroker.cli.lake:lake", "Archive topics to Parquet files, exactly once."),
    "mcp": ("kbroker.cli.mcp:mcp", "Serve tools of a cluster to an AI agent (MCP)."),
    "spark": (
        "kbroker.cli.spark:spark",
        "Find Spark's Kafka connector, and diagnose a Spark installation.",
    ),
    "init": ("kbroker.cli.init:init", "Create a project from a template: a Spark pipeline."),
    "fault": ("kbroker.cli.fault:fault", "Inject faults into a broker, for tests."),
    "clock": ("kbroker.cli.clock:clock", "Advance the clock of a broker, for tests."),
    "control": (
        "kbroker.cli.control:control",
        "Send a command of the control protocol to a broker.",
    ),
    "profile": ("kbroker.cli.profile:profile", "Name clusters and select one."),
    "completion": ("kbroker.cli.completion:completion", "Print a completion script for a shell."),
    "help": ("kbroker.cli.help:help_", "Show the help of a command or a topic."),
    "version": ("kbroker.cli.version:version_", "Show versions and installed extras."),
    "compat": (
        "kbroker.kafka_tools.compat:compat",
        "Run kafka-topics and other Kafka tools with their own options.",
    ),
}
SECTIONS = {
    "Broker": (
        "serve",
        "run",
        "health",
        "demo",
    ),
    "Records and topics": ("topic", "registry"),
    "Groups": ("group",),
    "Cluster": (
        "cluster",
        "config",
        "explain",
    ),
    "Security": ("security",),
    "Files": ("log",),
    "Pipelines": (
        "audit",
        "replay",
        "lake",
        "spark",
        "init",
    ),
    "AI agents": ("mcp",),
    "Testing": (
        "fault",
        "clock",
        "control",
    ),
    "Command line": (
        "profile",
        "completion",
        "help",
        "version",
        "compat",
    ),
}


_EXTRA = "Got unexpected extra argument"


def _complete_profiles(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the profiles whose names start with the typed text."""
    from .profiles import complete_profiles

    return complete_profiles(context, parameter, incomplete)


class Kbroker(LazyGroup):
    """The root command group."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; output never fails because of the locale or closed streams."""
        defer_imports()
        open_missing_streams()
        accept_all_characters()
        if VARIABLE in os.environ:
            from .shells import register_scripts

            register_scripts()
        with reported_write_errors():
            return super().main(*args, **kwargs)

    def invoke(self, context: click.Context) -> object:
        """Run a command, and escape control characters in errors: clients choose the quoted names.

        An OS error with a file name is reported as a message, without a traceback. If standard
        output is a closed pipe, or on Ctrl+C, the command exits without a message.
        """
        try:
            return super().invoke(context)
        except BrokenPipeError:
            discard_output()
            raise SystemExit(0) from None
        except KeyboardInterrupt:
            from .target import SIGNALLED

            raise SystemExit(SIGNALLED + signal.SIGINT) from None
        except OSError as error:
            if error.filename is None:
                raise
            message = f"{error.filename}: {error.strerror}"
            raise click.ClickException(printable(message)) from None
        except click.ClickException as error:
            message = printable(error.message, keep="\n\t")
            if message.startswith(_EXTRA):  # such as a password with a space in it
                message = "unexpected extra arguments (not shown: they may be secrets)"
            error.message = message  # type: ignore[misc]
            if uses_color(err=True):
                error.message = paint(error.message, Style.PROBLEM)  # type: ignore[misc]
            raise


def _print_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the version and exit, for `--version`.

    The imports are local, so that they do not delay other commands.
    """
    if is_asked:
        from .output import say
        from .version import is_compiled

        say(f"kbroker {__version__}{', compiled' if is_compiled() else ''}")
        context.exit()


@click.group(
    cls=Kbroker,
    lazy=COMMANDS,
    sections=SECTIONS,
    epilog="`kbroker help` also describes offsets, formats, profiles, security and exit codes.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="For commands that connect to a cluster: set brokers, client.id or a security setting; "
    "can be given several times.",
)
@click.option(
    "--profile",
    metavar="NAME",
    shell_complete=_complete_profiles,
    help="For commands that connect to a cluster: use this profile instead of the selected one.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main(settings: tuple[str, ...], profile: str | None) -> None:
    """Run and manage Kafka brokers that need no JVM and no Docker."""
    del profile  # `given_of` reads it from the context
    if settings:
        from .target import parse_settings

        parse_settings(settings)


add_color_option(main)
