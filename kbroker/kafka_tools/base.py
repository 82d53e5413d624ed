"""Common parts of the tools: options, connection to the cluster, error handling."""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from kbroker.cli.output import say
from kbroker.cli.target import (
    BROKERS,
    CLIENT_ID,
    ENVIRONMENT,
    SECURITY_SETTINGS,
    SIGNALLED,
    Target,
    parse_addresses,
    run_or_end,
    security_of,
)
from kbroker.text.pairs import parse_pairs

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.protocol.errors import ErrorCode

Result = TypeVar("Result")
_OPTION = re.compile(r"(--[a-z-]+)(=.*)?")
FAILED = 1
INTERRUPTED = SIGNALLED + 2
# Release of Kafka whose tools are reproduced.
VERSION = "4.4.0"


class Parser(argparse.ArgumentParser):
    """Option parser of one tool. As in Kafka's tools, option names may be abbreviated.

    Args:
        name: Name of the tool.
        instead: kbroker command with more functions, for error messages.
        properties: Options that set a client setting.
    """

    def __init__(self, name: str, instead: str, *, properties: Sequence[str] = ()) -> None:
        super().__init__(prog=name, add_help=False)
        self.instead = instead
        self.add_argument("--help", action="help", help="Show this help and exit.")
        self.add_argument("--version", action="version", version=_version())
        self.add_argument(
            *("--bootstrap-server", "--broker-list"),
            metavar="HOST:PORT",
            help="Address of a broker.",
        )
        self.add_argument(
            *("--command-config", "--producer.config", "--consumer.config"),
            metavar="FILE",
            help="Properties file with settings of Kafka's clients.",
        )
        self.add_argument("--bootstrap-controller", help=argparse.SUPPRESS)
        if properties:
            self.add_argument(
                *properties, dest="properties", action="append", default=[], metavar="NAME=VALUE"
            )

    def add_ignored(self, *names: str, flag: bool = False) -> None:
        """Add options that are accepted and ignored."""
        for name in names:
            if flag:
                self.add_argument(name, action="store_true", help=argparse.SUPPRESS)
            else:
                self.add_argument(name, help=argparse.SUPPRESS)

    def add_flags(self, *names: str) -> None:
        """Add options without a value."""
        for name in names:
            self.add_argument(name, action="store_true")

    def add_values(self, *names: str) -> None:
        """Add options with a value."""
        for name in names:
            self.add_argument(name)

    def add_lists(self, *names: str) -> None:
        """Add options with a value that may be given several times."""
        for name in names:
            self.add_argument(name, action="append", default=[])

    def error(self, message: str) -> NoReturn:
        """Print an error about the options, without their values (possible secrets), and exit."""
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            message = f"not supported: {_option_names(unknown)}"
        message = re.sub(r"ambiguous option: ([^\s=]*).*? could match", r"\1 could be", message)
        message = re.sub(r"invalid choice: .*? \(choose", r"not supported (choose", message)
        message = re.sub(r"ignored explicit argument .*", "takes no value", message)
        self.exit_with_message(message)

    def exit_with_message(self, message: str) -> NoReturn:
        """Print an error message with the alternatives to this tool, and exit."""
        exit_with_message(
            f"{self.prog}: {message}; use `{self.instead}`, or {self.prog} of Apache Kafka, which "
            "works with kbroker"
        )


def _option_names(text: str) -> str:
    """Return the names of unknown options, and the number of other unknown arguments."""
    matches = [_OPTION.fullmatch(word) for word in text.split()]
    names = [match[1] for match in matches if match]
    count = matches.count(None)
    return ", ".join(
        [*names, *([f"{count} arguments (not shown: they may be secrets)"] if count else [])]
    )


def _version() -> str:
    from kbroker import __version__

    return f"{VERSION} (kbroker {__version__})"


def exit_with_message(*lines: str) -> NoReturn:
    """Print the lines of a message on the error stream and exit."""
    say(*lines, err=True)
    sys.exit(FAILED)


def parse_pairs_or_exit(texts: Iterable[str]) -> dict[str, str]:
    """Parse NAME=VALUE strings; the last value of a name applies. Exit if a string is invalid."""
    try:
        return parse_pairs(texts)
    except ValueError as error:
        exit_with_message(str(error))


def settings_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the client settings of the file, overridden by settings of the command line."""
    given: dict[str, str] = {}
    if options.command_config is not None:
        from pathlib import Path

        from kbroker.config.property import ConfigError
        from kbroker.config.sources import read_file

        try:
            given = read_file(Path(options.command_config))
        except ConfigError as error:
            exit_with_message(str(error))
    given |= parse_pairs_or_exit(getattr(options, "properties", ()))
    if given.get("security.protocol", "").startswith("SASL_") and "sasl.jaas.config" not in given:
        given |= _java_login()
    return given


def _java_login() -> dict[str, str]:
    """Return the credentials from the JAAS file in `KAFKA_OPTS`, as Java clients use them."""
    from kbroker.config.kafka_logins import JAVA_OPTIONS, client_login
    from kbroker.config.property import ConfigError

    try:
        login = client_login(os.environ.get(JAVA_OPTIONS, ""))
    except ConfigError as error:
        exit_with_message(str(error))
    return {"sasl.jaas.config": login} if login else {}


def target_of(parser: Parser, options: argparse.Namespace, settings: Mapping[str, str]) -> Target:
    """Return the cluster that the options name. Exit if no address is given."""
    if options.bootstrap_controller is not None:
        parser.exit_with_message(
            "--bootstrap-controller: every kbroker node is a broker and a controller"
        )
    options.bootstrap_server = options.bootstrap_server or os.environ.get(ENVIRONMENT)
    if options.bootstrap_server is None:
        parser.error("--bootstrap-server HOST:PORT is missing")
    known = {name: value for name, value in settings.items() if name in SECURITY_SETTINGS}
    try:
        addresses = parse_addresses(options.bootstrap_server, "--bootstrap-server")
        security = security_of({BROKERS: options.bootstrap_server, **known})
    except click.ClickException as error:
        exit_with_message(f"{parser.prog}: {error.format_message()}")
    return Target(addresses, settings.get(CLIENT_ID, parser.prog), security, settings)


def run(
    parser: Parser,
    options: argparse.Namespace,
    work: Callable[[ClusterClient], Awaitable[Result]],
    failed: Callable[[str], None],
    settings: Mapping[str, str] | None = None,
) -> Result:
    """Run `work` on the cluster of the options.

    If it fails, `failed` prints the error like Kafka's tool, and the process exits.
    """
    target = target_of(parser, options, settings_of(options) if settings is None else settings)
    return run_or_end(target, work, functools.partial(_exit_with_error, failed=failed))


def _exit_with_error(error: BaseException, failed: Callable[[str], None]) -> NoReturn:
    from kbroker.client.errors import CannotConnect, ClientError
    from kbroker.protocol.errors import KafkaError
    from kbroker.protocol.primitives import DecodeError

    if isinstance(error, KafkaError):
        failed(message_of(error.code, error.message))
    elif isinstance(error, CannotConnect):
        failed(f"{error.reasons}; check that a broker is running there")
    elif isinstance(error, (ClientError, DecodeError, OSError)):
        failed(str(error))
    else:
        raise error
    sys.exit(FAILED)


# Messages of Kafka's clients for errors without a message of the broker.
_CLIENT_MESSAGES = {
    "GROUP_ID_NOT_FOUND": "The group id does not exist.",
    "NON_EMPTY_GROUP": "The group is not empty.",
    "OFFSET_OUT_OF_RANGE": (
        "The requested offset is not within the range of offsets maintained by the server."
    ),
    "POLICY_VIOLATION": "Request parameters do not satisfy the configured policy.",
    "UNKNOWN_TOPIC_OR_PARTITION": "This server does not host this topic-partition.",
}
# Exception names that differ from the name of the error code.
_EXCEPTIONS = {"INVALID_CONFIG": "InvalidConfiguration", "NON_EMPTY_GROUP": "GroupNotEmpty"}


def message_of(code: ErrorCode, message: str | None) -> str:
    """Return the broker's message, else the message of Kafka's client, else the error name."""
    return message or _CLIENT_MESSAGES.get(code.name, code.name)


def java_exception_text(code: ErrorCode, message: str | None) -> str:
    """Return an error in the text format of Java's exceptions."""
    arguments = "".join(word.capitalize() for word in code.name.split("_"))
    name = _EXCEPTIONS.get(code.name, arguments.removesuffix("Exception"))
    return f"org.apache.kafka.common.errors.{name}Exception: {message_of(code, message)}"


def match_names(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that match a pattern of Kafka's tools: a regular expression, or a list."""
    text = pattern.strip().strip("\"'").replace(",", "|").replace(" ", "")
    try:
        compiled = re.compile(text)
    except re.error as error:
        exit_with_message(f"invalid regular expression {pattern!r}: {error}")
    return [name for name in names if compiled.fullmatch(name)]


async def topic_names(cluster: ClusterClient, *, internal: bool = True) -> list[str]:
    """Return the sorted names of all visible topics."""
    rows = (await cluster.metadata()).topics
    return sorted(row.name or "" for row in rows if internal or not row.is_internal)


async def create_if_missing(cluster: ClusterClient, name: str) -> None:
    """Send a Metadata request so that the broker auto-creates a missing topic, if enabled."""
    from kbroker.client.topics import DEFAULT, wait_until_ready
    from kbroker.protocol.errors import ErrorCode
    from kbroker.protocol.messages.metadata import MetadataRequest

    (row,) = (await cluster.metadata([name])).topics
    if row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return
    request = MetadataRequest(
        topics=[MetadataRequest.Topic(name=name)], allow_auto_topic_creation=True
    )
    answer = await (await cluster.any()).ask(request, oldest=4)
    if answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
        await wait_until_ready(cluster, {name: DEFAULT})


def columns(headings: Sequence[tuple[str, int]], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table in the form of Kafka's tools.

    Args:
        headings: Headings and minimum widths of the columns; 0 for a last column without padding.
        rows: Cells of each row.
    """
    from kbroker.text.printable import printable

    cells = [[printable(str(cell)) for cell in row] for row in rows]
    return [
        " ".join(cell.ljust(width) for cell, (_, width) in zip(line, headings, strict=True))
        for line in ([name for name, _ in headings], *cells)
    ]
