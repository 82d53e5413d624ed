"""Run the commands of a documentation page, and compare their output with the page.

The blocks of a page run in order in one shell and one empty directory. `sh` and `python` blocks must
succeed. Each command of a `console` block (after `$ `) must print the lines below it, where `...`
matches anything. `text` blocks are not run. The ports 9092 to 9099 of `localhost`, and etcd's 2379 and
2380, are replaced by ports of the test.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .ports import free_ports

DOCS = Path(__file__).parent.parent / "docs"
FENCE = re.compile(r"^```(sh|console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "@@@"
PREAMBLE = "set -m\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\nexec 2>&1\n"
SECONDS = 300
# Number of ports from 9092 on.
PORTS = 8
ETCD_PORTS = 2379, 2380
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Command:
    """One command and its expected output, or None if any output is accepted."""

    text: str
    expected: str | None

    def script(self, number: int) -> str:
        """Return shell lines that announce the command, and exit if it fails."""
        must_succeed = "set -e" if self.expected is None else "set +e"
        return f"set +e\nprintf '\\n{MARK}%d\\n' {number}\n{must_succeed}\n{self.text}\n"


def commands_of(page: str) -> list[Command]:
    """Return the commands of a page, in order."""
    found = []
    for kind, block in FENCE.findall(page):
        if kind == "sh":
            found.append(Command(block, None))
        elif kind == "python":
            found.append(Command(f"python - <<'END_OF_BLOCK'\n{block}END_OF_BLOCK", None))
        else:
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, expected = part.partition("\n")
                found.append(Command(command, expected))
    return found


def check_page(name: str, directory: Path, seconds: float = SECONDS) -> int:
    """Run the commands of a page in an empty directory below `directory`.

    Args:
        name: Path of the page below docs/, without ".md".

    Returns:
        The number of commands on the page.
    """
    page = (DOCS / f"{name}.md").read_text()
    count = len(commands_of(page))
    assert count
    (directory / "page").mkdir()
    wrong = run_page(page, directory / "page", seconds)
    assert not wrong, "\n\n".join(wrong)
    return count


def run_page(page: str, directory: Path, seconds: float = SECONDS) -> list[str]:
    """Run the commands of a page; return a description of the differences."""
    port = free_ports(PORTS + len(ETCD_PORTS))
    for number, theirs in enumerate((*range(9092, 9092 + PORTS), *ETCD_PORTS)):
        page = page.replace(f"localhost:{theirs}", f"localhost:{port + number}")
    page = page.replace("--control-port 9099", f"--control-port {port + PORTS - 1}")
    commands = commands_of(page)
    script = PREAMBLE + "".join(one.script(number) for number, one in enumerate(commands))
    done = subprocess.run(
        ["bash", "-c", script + f"set +e\nprintf '\\n{MARK}{len(commands)}\\n'"],
        cwd=directory,
        env=_environ(directory, port),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    printed = re.split(rf"^{MARK}\d+\n", done.stdout, flags=re.MULTILINE)[1:]
    wrong = [
        f"$ {one.text}\n{got}--- expected:\n{one.expected}"
        for one, got in zip(commands, printed, strict=False)
        if one.expected is not None and not _is_as_expected(one.expected, got)
    ]
    if len(printed) <= len(commands):
        wrong.append(f"$ {commands[len(printed) - 1].text}\nfailed:\n{printed[-1]}")
    if wrong:
        wrong += [f"{log.name}:\n{log.read_text()[-2000:]}" for log in directory.glob("*.log")]
    return wrong


def _is_as_expected(expected: str, got: str) -> bool:
    # The shell may report here that a job has exited.
    got = re.sub(r"^\[\d+\].*\n", "", got, flags=re.MULTILINE)
    # Ignore warnings about the disk usage of the test machine.
    got = re.sub(r"^directory .* nearly full: .*\n", "", got, flags=re.MULTILINE)
    if got.split() == ["WHAT", "WHERE", "PROBLEM", "ACTION"]:
        got = "healthy"
    return doctest.OutputChecker().check_output(expected.strip(), got.strip(), FLAGS)


def _environ(directory: Path, port: int) -> dict[str, str]:
    """Return an environment with this checkout's `kbroker`, `pytest` and `python`.

    Brokers exit with the shell.
    """
    programs = directory.parent / f"{directory.name}-bin"
    programs.mkdir()
    for name, arguments in (("kbroker", "-m kbroker"), ("pytest", "-m pytest"), ("python", "")):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        path.chmod(0o755)
    return os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONWARNINGS": "ignore",
        "KBROKER_PORT": str(port),
        "KBROKER_BOOTSTRAP": f"localhost:{port}",
        "KBROKER_PROFILES": str(programs / "profiles.toml"),
        "KBROKER_EXIT_WITH_PARENT": "1",
    }
