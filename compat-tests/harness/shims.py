"""`kbroker compat` as a replacement for Kafka's tools, to run the same transcripts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from click.testing import CliRunner

from kbroker.cli import main

from .java import TOOL_SECONDS
from .tools import ToolOutput, Tools

# Part of the message with which it rejects an unsupported option.
REFUSED = "which works with kbroker"
# Hints of Java's consumer, and Java's repetitions of an error message.
_NOISE = re.compile(
    r"The consumer rebalance protocol \(KIP-848\) is production-ready!.*"
    r"|(java\.util\.concurrent\.ExecutionException|Caused by): .*"
    r"|ERROR .*|org\.apache\.kafka\.common\.errors\.\w+(: .*)?"
)


def is_noise(line: str) -> bool:
    """Return True if a line is about Java, or repeats an error message."""
    return _NOISE.fullmatch(line.strip()) is not None


@dataclass
class Shims:
    """Runs `kbroker compat`, or Kafka's tool for commands that it does not support (`refused`)."""

    tools: Tools
    refused: list[str] = field(default_factory=list)
    done: int = 0

    def run(
        self, command: str, *arguments: str, stdin: str = "", seconds: float = TOOL_SECONDS
    ) -> ToolOutput:
        """Run a command and return its result, like `Tools.run`."""
        words = ["compat", command, *arguments]
        ended = CliRunner().invoke(main, words, input=stdin, catch_exceptions=False)
        if REFUSED in ended.stderr:
            self.refused.append(" ".join([command, *arguments]))
            output = self.tools.run(command, *arguments, stdin=stdin, seconds=seconds)
            return ToolOutput(
                output.status, _without_noise(output.stdout), _without_noise(output.stderr)
            )
        self.done += 1
        return ToolOutput(
            ended.exit_code, _without_noise(ended.stdout), _without_noise(ended.stderr)
        )


def _without_noise(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if not is_noise(line))
