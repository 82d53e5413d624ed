"""The `kbroker control` command: sends commands to a broker started with `--control-port`."""

from __future__ import annotations

import functools
import json
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from .output import say

Command = TypeVar("Command", bound=Callable[..., object])
HINT = (
    "start the broker with --control-port, and pass the address and the token file of its Control "
    "line with --control and --control-token-file"
)
DATA_VARIABLE, DATA_DIRECTORY = "KBROKER_DATA_DIR", "kbroker-data"
DEFAULT_DIRECTORY = f"{DATA_VARIABLE} or ./{DATA_DIRECTORY}"
FILE = "control.json"


class Control(NamedTuple):
    """Address of a broker's control port, and the file with its token."""

    address: str
    token_file: str


def control_options(command: Command, *, optional: bool = False) -> Command:
    """Give a command `--control` and `--control-token-file`; it receives `control`.

    Args:
        command: The command.
        optional: If no option is given, pass None instead of looking for a file of a server.
    """
    default = "none" if optional else f"{FILE} in the data directory, which is {DEFAULT_DIRECTORY}"

    @click.option(
        "--control",
        "where",
        metavar="HOST:PORT|FILE",
        envvar="KBROKER_CONTROL",
        help="Address of the control port, as in the broker's banner, or a JSON port file of the "
        f"broker.  [env: KBROKER_CONTROL; default: {default}]",
    )
    @click.option(
        "--control-token-file",
        "token_file",
        metavar="FILE",
        envvar="KBROKER_CONTROL_TOKEN_FILE",
        help="File with the token of the control port, named in the broker's banner. Required if "
        "--control is HOST:PORT.  [env: KBROKER_CONTROL_TOKEN_FILE]",
    )
    @functools.wraps(command)
    def with_control(
        *args: object, where: str | None, token_file: str | None, **kw: object
    ) -> object:
        is_none = optional and where is None
        found = None if is_none else _resolve_control(where, token_file)
        return command(*args, control=found, **kw)

    return with_control  # type: ignore[return-value]


def _resolve_control(where: str | None, token_file: str | None) -> Control:
    """Return the address and token file of the options, or of a file that a server has written."""
    if where is not None and not where.endswith(".json"):
        if token_file is None:
            raise click.UsageError(f"--control {where} needs --control-token-file; {HINT}")
        return Control(where, token_file)
    path = Path(
        where or Path((os.environ.get(DATA_VARIABLE) or DATA_DIRECTORY).split(",")[0], FILE)
    )
    try:
        _check_owner(path)
        data = json.loads(path.read_text(encoding="utf-8"))
        return Control(data["control"], token_file or data["control_token_file"])
    except FileNotFoundError:
        raise click.ClickException(
            f"{path} does not exist, so the control port is unknown; {HINT}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(
            f"{path}: cannot read the address of the control port ({error}); {HINT}"
        ) from None


def _check_owner(path: Path) -> None:
    """Raise ValueError if another user could have written the file.

    Such a file could make this command send the contents of any file to any address.
    """
    if os.name != "posix":
        return
    found = path.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise ValueError("another user could have written it")


def ask(control: Control, /, **command: object) -> dict[str, Any]:
    """Send one command and return the response; on an error, exit with its message."""
    from kbroker.client.endpoint import Endpoint

    try:
        token = Path(control.token_file).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise click.ClickException(
            f"{control.token_file}: cannot read the token ({error}); {HINT}"
        ) from None
    is_sent = False
    try:
        with (
            socket.create_connection(Endpoint.parse(control.address)) as stream,
            stream.makefile() as lines,
        ):
            for each in ({"do": "login", "token": token}, command):
                is_sent = each is command
                stream.sendall(json.dumps(each).encode() + b"\n")
                answer: dict[str, Any] = json.loads(lines.readline())
                if not answer["ok"]:
                    break
    except KeyboardInterrupt:
        if is_sent:
            say(f"kbroker: {control.address} may continue with the command", err=True)
        raise
    except (OSError, ValueError) as error:
        problem = (
            "no response to the command, which may have run" if is_sent else "cannot send a command"
        )
        raise click.ClickException(f"{control.address}: {problem} ({error}); {HINT}") from None
    if not answer["ok"]:
        # Indent further lines, because the message may quote names with line breaks.
        raise click.ClickException(answer["error"].replace("\n", "\n  "))
    return answer


@click.command()
@control_options
@click.argument("command", metavar="COMMAND")
@click.argument("words", nargs=-1, metavar="[WORD=VALUE]...")
def control(control: Control, command: str, words: tuple[str, ...]) -> None:
    """Send a command and print the response.

    Example: kbroker control crash_at point=produce.appended

    docs/reference/control-protocol.md lists the commands. VALUE is parsed as JSON, or else used as
    a string.
    """
    answer = ask(control, **{**dict(map(_parse_argument, words)), "do": command})
    del answer["ok"]
    say(json.dumps(answer))


def _parse_argument(text: str) -> tuple[str, object]:
    from kbroker.text.documents import read_json

    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"invalid argument {text!r}; expected WORD=VALUE")
    try:
        return name, read_json(value)
    except ValueError:
        return name, value
