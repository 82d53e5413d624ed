"""Runs a main class with a set of jars, such as Kafka's command-line tools."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .places import COMPAT, jars

TOOL_SECONDS = 90.0
STOP_SECONDS = 30.0


class ToolFailed(Exception):
    """A tool ended with an unexpected exit status."""


def command_line(
    jar_set: str, main: str, *arguments: str, logs: str = "log4j2.properties"
) -> list[str]:
    """Return the command line of a small JVM that starts fast.

    Args:
        jar_set: Name of the set of jars.
        main: Main class, or a source file with a single class.
        arguments: Its arguments.
        logs: File with the configuration of its logs, in the directory java.
    """
    return [
        *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"),
        f"-Dlog4j2.configurationFile={COMPAT / 'java' / logs}",
        *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),  # ToolRunner reads the shutdown hooks
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
    """Run a main class with a set of jars.

    Args:
        jar_set: Name of the set of jars.
        main: Main class.
        arguments: Its arguments.
        stdin: Its input.
        ok: False if the tool is expected to fail. Then a success raises ToolFailed.
        seconds: Timeout in seconds.

    Returns:
        stdout followed by stderr.

    Raises:
        ToolFailed: Unexpected exit status or timeout. The message contains the tool's output.
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
        output = f"{_text(late.stdout)}\n{_text(late.stderr)}"
        raise ToolFailed(f"{main} {arguments} took more than {seconds} s\n{output}") from None
    output = done.stdout + done.stderr
    if (done.returncode == 0) is not ok:
        raise ToolFailed(f"{main} {arguments} ended with {done.returncode}\n{output}")
    return output


class JavaProcess:
    """A long-running Java program that can be killed and started again.

    Args:
        command: Command line, see `command_line`.
        log: File for its output.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program without waiting until it is ready."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the program with SIGKILL. Its files on disk stay."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """Stop the program gracefully with SIGTERM."""
        process, self._process = self._process, None
        assert process is not None
        process.terminate()
        process.wait(STOP_SECONDS)

    def output_tail(self) -> str:
        """Return the end of its output."""
        return self._log.read_text(errors="replace")[-4000:]

    def check(self) -> None:
        """Fail if the program has ended by itself."""
        assert self._process is not None
        status = self._process.poll()
        assert status is None, f"it ended with {status}\n{self.output_tail()}"


def _text(raw: bytes | str | None) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw or ""
