"""Client of a broker's control port, for explanations, faults and snapshots."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.client.errors import ClientError
from kbroker.text.documents import Json, read_json

# Maximum size of a response.
RESPONSE_BYTES_MAX = 1024 * 1024
RECEIVE_BYTES = 64 * 1024


class ControlFailed(ClientError):
    """A command of the control protocol failed; the message states why."""


@dataclass(frozen=True, slots=True)
class ControlPort:
    """The control port of a broker, and the file with its token."""

    address: Endpoint
    token_file: Path

    async def ask(self, **command: Json) -> dict[str, Json]:
        """Send one command and return the response.

        Args:
            command: The command of the control protocol.

        Raises:
            ControlFailed: The port cannot be used, or the command failed.
        """
        try:
            token = self.token_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise ControlFailed(
                f"{self.token_file}: cannot read the control token ({error}); is the broker running?"
            ) from None
        try:
            async with await trio.open_tcp_stream(*self.address) as stream:
                for each in ({"do": "login", "token": token}, command):
                    await stream.send_all(json.dumps(each).encode() + b"\n")
                    answer = await _receive(stream)
                    if not answer.get("ok"):
                        break
        except (OSError, trio.BrokenResourceError, ValueError) as error:
            raise ControlFailed(
                f"control port {self.address}: cannot send a command ({error}); is the broker "
                "running with --control-port?"
            ) from None
        if not answer.get("ok"):
            raise ControlFailed(str(answer.get("error")))
        return answer


async def _receive(stream: trio.abc.ReceiveStream) -> dict[str, Json]:
    """Return one response.

    Raises:
        ValueError: The response is malformed or too large, or the port closed the connection.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        data = await stream.receive_some(RECEIVE_BYTES)
        line += data
        if not data or len(line) > RESPONSE_BYTES_MAX:
            raise ValueError("no complete response")
    answer = read_json(bytes(line))
    if isinstance(answer, dict):
        return answer
    raise ValueError("the response is not an object")
