"""Run one class of a jar set: Kafka's own command-line tools."""

from __future__ import annotations

import subprocess

from .places import COMPAT, jars

TOOL_SECONDS = 90.0


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


def _text(raw: bytes | str | None) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw or ""
