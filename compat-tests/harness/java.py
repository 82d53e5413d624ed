"""Run one class of a jar set: Kafka's own command-line tools."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .places import COMPAT, jars

TOOL_SECONDS = 90.0
STOP_SECONDS = 30.0


class ToolFailed(Exception):
    """A tool ended with a status that the test did not expect."""


def command_line(jar_set: str, main: str, *arguments: str) -> list[str]:
    """How a small JVM that starts fast is run; main: a class, or a file of one class."""
    return [
        *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"),
        f"-Dlog4j2.configurationFile={COMPAT / 'java' / 'log4j2.properties'}",
        *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),  # for ToolRunner: shutdown hooks
        *("-cp", jars(jar_set), main, *arguments),
    ]


def java(
    jar_set: str,
    main: str,
    *arguments: str,
    stdin: str | None = None,
    ok: bool = True,
    seconds: float = TOOL_SECONDS,
) -> str:
    """Run `main` with the jars of `jar_set`; returns stdout followed by stderr.

    ok: False when the tool is expected to fail (then a success raises).
    seconds: how long the tool may take.
    Raises ToolFailed with everything the tool wrote.
    """
    try:
        done = subprocess.run(
            command_line(jar_set, main, *arguments),
            input=stdin or "",
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        said = f"{_text(late.stdout)}\n{_text(late.stderr)}"
        raise ToolFailed(f"{main} {arguments} took more than {seconds} s\n{said}") from None
    output = done.stdout + done.stderr
    if (done.returncode == 0) is not ok:
        raise ToolFailed(f"{main} {arguments} ended with {done.returncode}\n{output}")
    return output


class JavaProcess:
    """A program that runs until it is stopped, and can be killed and started again.

    command: see `command_line`. log: where everything goes that it writes.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting for anything."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL; what it kept on disk stays."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """SIGTERM: it ends in good order."""
        process, self._process = self._process, None
        assert process is not None
        process.terminate()
        process.wait(STOP_SECONDS)

    def said(self) -> str:
        """The last that it wrote."""
        return self._log.read_text(errors="replace")[-4000:]

    def check(self) -> None:
        """Fail when it has ended by itself."""
        assert self._process is not None
        status = self._process.poll()
        assert status is None, f"it ended with {status}\n{self.said()}"


def _text(raw: bytes | str | None) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw or ""
