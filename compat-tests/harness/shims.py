"""`kbroker compat` in place of Kafka's own tools: for the same transcripts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from click.testing import CliRunner

from kbroker.cli import main

from .java import TOOL_SECONDS
from .tools import Said, Tools

REFUSED = "which works with kbroker"
"""How it says that it does not know something."""
_NOISE = re.compile(
    r"The consumer rebalance protocol \(KIP-848\) is production-ready!.*"
    r"|(java\.util\.concurrent\.ExecutionException|Caused by): .*"
    r"|ERROR .*|org\.apache\.kafka\.common\.errors\.\w+(: .*)?"
)
"""What Java's consumer says about itself, and how Java says once more what went wrong."""


def is_noise(line: str) -> bool:
    """Whether a line is about Java, or says again what another one said."""
    return _NOISE.fullmatch(line.strip()) is not None


@dataclass
class Shims:
    """Runs `kbroker compat`, and Kafka's own tool where that refuses; `refused` has those commands."""

    tools: Tools
    refused: list[str] = field(default_factory=list)
    done: int = 0

    def run(
        self, command: str, *arguments: str, stdin: str = "", seconds: float = TOOL_SECONDS
    ) -> Said:
        """As `Tools.run`."""
        words = ["compat", command, *arguments]
        ended = CliRunner().invoke(main, words, input=stdin, catch_exceptions=False)
        if REFUSED in ended.stderr:
            self.refused.append(" ".join([command, *arguments]))
            said = self.tools.run(command, *arguments, stdin=stdin, seconds=seconds)
            return Said(said.status, _quiet(said.stdout), _quiet(said.stderr))
        self.done += 1
        return Said(ended.exit_code, _quiet(ended.stdout), _quiet(ended.stderr))


def _quiet(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if not is_noise(line))
