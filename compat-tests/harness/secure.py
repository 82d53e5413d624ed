"""A server with `--tls-dev`, and the client settings that it prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

STOP_SECONDS = 30
READY = "ready in"
# Python clients whose settings are files.
PYTHON = ("kafka-python", "confluent-kafka", "spark")


class ServerInfo(NamedTuple):
    """Content of the banner.

    Attributes:
        address: Address of the server.
        log: Log file of the server.
        directory: Directory of certificates and client settings.
        examples: Example per client.
    """

    address: str
    log: Path
    directory: Path
    examples: Mapping[str, str]

    def java(self, *roles: str) -> dict[str, str]:
        """Return the administrator's settings for Java, repeated with each prefix in `roles`."""
        settings = _settings(self.directory / "client.properties")
        return {f"{role}{key}": value for role in ("", *roles) for key, value in settings.items()}

    def librdkafka(self, **others: str) -> dict[str, Any]:
        """Return the administrator's settings for librdkafka. In `others`, `_` stands for a dot."""
        changed = {name.replace("_", "."): value for name, value in others.items()}
        return _settings(self.directory / "librdkafka.conf") | changed


@contextmanager
def secure_server(directory: Path, *flags: str) -> Iterator[ServerInfo]:
    """Run `kbroker serve --tls-dev` in a directory and parse its banner."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "kbroker", "serve", "--tls-dev", "--port", "0"]
    command += ["--data-dir", str(directory / "data"), *flags]
    with (
        (directory / "broker.log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            yield _parse_banner(_banner(process, directory), directory / "broker.log")
        finally:
            process.terminate()
            process.communicate(timeout=STOP_SECONDS)


def _banner(process: subprocess.Popen[str], directory: Path) -> str:
    assert process.stdout is not None
    lines = []
    while not (line := process.stdout.readline()).startswith(READY):
        assert line, (directory / "broker.log").read_text()
        lines.append(line)
    return "".join(lines)


def _settings(file: Path) -> dict[str, Any]:
    lines = (line for line in file.read_text().splitlines() if line and line[0] != "#")
    return dict(line.split("=", 1) for line in lines)


def _parse_banner(banner: str, log: Path) -> ServerInfo:
    """Return the content of the banner, and the Python settings in its directory."""
    lines = [line.split(maxsplit=1) for line in banner.splitlines()[1:]]
    words = {name: text.strip() for name, text in lines}
    directory = Path(words["Login"].split()[-1])
    examples = {name: words[name] for name in ("kbroker", "kcat", "Java")}
    for name in PYTHON:
        assert f"{name}.py" in words["Python"], banner
        examples[name] = (directory / f"{name}.py").read_text()
    return ServerInfo(words["Kafka"].split()[0], log, directory, examples)
