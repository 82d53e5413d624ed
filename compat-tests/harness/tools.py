"""Kafka's command-line tools in one JVM, and transcripts of their output."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

from .clients import ClientDied, ScriptProcess
from .java import TOOL_SECONDS, ToolFailed, command_line
from .places import COMPAT

TOOLS = "org.apache.kafka.tools"
# Main classes of Kafka's scripts.
COMMANDS: Mapping[str, str] = {
    "kafka-acls": f"{TOOLS}.AclCommand",
    "kafka-broker-api-versions": f"{TOOLS}.BrokerApiVersionsCommand",
    "kafka-client-metrics": f"{TOOLS}.ClientMetricsCommand",
    "kafka-cluster": f"{TOOLS}.ClusterTool",
    "kafka-configs": f"{TOOLS}.ConfigCommand",
    "kafka-console-consumer": f"{TOOLS}.consumer.ConsoleConsumer",
    "kafka-console-producer": f"{TOOLS}.ConsoleProducer",
    "kafka-console-share-consumer": f"{TOOLS}.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": f"{TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": f"{TOOLS}.ConsumerPerformance",
    "kafka-delegation-tokens": f"{TOOLS}.DelegationTokenCommand",
    "kafka-delete-records": f"{TOOLS}.DeleteRecordsCommand",
    "kafka-dump-log": f"{TOOLS}.DumpLogSegments",
    "kafka-e2e-latency": f"{TOOLS}.EndToEndLatency",
    "kafka-features": f"{TOOLS}.FeatureCommand",
    "kafka-get-offsets": f"{TOOLS}.GetOffsetShell",
    "kafka-groups": f"{TOOLS}.GroupsCommand",
    "kafka-leader-election": f"{TOOLS}.LeaderElectionCommand",
    "kafka-log-dirs": f"{TOOLS}.LogDirsCommand",
    "kafka-metadata-quorum": f"{TOOLS}.MetadataQuorumCommand",
    "kafka-producer-perf-test": f"{TOOLS}.ProducerPerformance",
    "kafka-reassign-partitions": f"{TOOLS}.reassign.ReassignPartitionsCommand",
    "kafka-share-consumer-perf-test": f"{TOOLS}.ShareConsumerPerformance",
    "kafka-share-groups": f"{TOOLS}.consumer.group.ShareGroupCommand",
    "kafka-streams-application-reset": f"{TOOLS}.StreamsResetter",
    "kafka-streams-groups": f"{TOOLS}.streams.StreamsGroupCommand",
    "kafka-topics": f"{TOOLS}.TopicCommand",
    "kafka-transactions": f"{TOOLS}.TransactionsCommand",
    "kafka-verifiable-consumer": f"{TOOLS}.VerifiableConsumer",
    "kafka-verifiable-producer": f"{TOOLS}.VerifiableProducer",
    "kafka-verifiable-share-consumer": f"{TOOLS}.VerifiableShareConsumer",
}
# Settings of brokers for transcripts: ACLs are enforced, and the tools are super users.
WITH_ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@dataclass(frozen=True)
class ToolOutput:
    """Exit status and output of a tool."""

    status: int
    stdout: str
    stderr: str


class Tools:
    """Tools of one set of jars, run one at a time in one JVM (java/ToolRunner.java).

    The JVM starts with the first tool, and again after a tool that did not end.
    """

    def __init__(self, jar_set: str, log: Path) -> None:
        self._jar_set = jar_set
        self._log = log
        self._jvm: ScriptProcess | None = None

    def run(
        self, command: str, *arguments: str, stdin: str = "", seconds: float = TOOL_SECONDS
    ) -> ToolOutput:
        """Run a tool by the name of its script.

        Raises:
            ToolFailed: The tool did not end in time.
        """
        if self._jvm is None:
            runner = command_line(self._jar_set, str(COMPAT / "java" / "ToolRunner.java"))
            self._jvm = ScriptProcess(self._jar_set, runner, self._log)
        try:
            output = self._jvm(
                "run",
                main=COMMANDS[command],
                arguments=arguments,
                stdin=stdin,
                seconds_allowed=seconds,
            )
        except ClientDied as gone:
            self._jvm.kill()
            self._jvm = None
            raise ToolFailed(f"{command} {shlex.join(arguments)}: {gone}") from None
        return ToolOutput(**output)

    def close(self) -> None:
        """End the JVM."""
        if self._jvm is not None:
            self._jvm.close()


@dataclass
class Step:
    """A command of a transcript, its stdin, and its expected output."""

    prompt: str
    command: str
    stdin: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the lines of the transcript file."""
        lines = [f"{self.prompt} {self.command}", *(f"< {line}" for line in self.stdin)]
        return "".join(f"{line}\n" for line in [*lines, *self.expected])

    def expected_of(self, broker: str) -> list[str]:
        """Return the output expected from this broker."""
        marks = [_BROKER_LINE.fullmatch(line) for line in self.expected]
        return [
            line if mark is None else mark["line"]
            for line, mark in zip(self.expected, marks, strict=True)
            if mark is None or mark["broker"] == broker
        ]

    def bless(self, broker: str, seen: list[str]) -> None:
        """Replace the expected output by `seen`.

        Lines that differ from those of the other broker are marked with the name of the broker.
        """
        other = next(name for name in ("apache", "kbroker") if name != broker)
        theirs = self.expected_of(other) if self.expected else seen
        ours = [next((one for one in theirs if fits([one], [line])), line) for line in seen]
        self.expected = []
        for same, a, b, c, d in SequenceMatcher(None, theirs, ours, False).get_opcodes():
            if same == "equal":
                self.expected += ours[c:d]
            else:
                differ = [f"{other}> {line}" for line in theirs[a:b]]
                differ += [f"{broker}> {line}" for line in ours[c:d]]
                self.expected += sorted(differ, key=lambda line: line.partition(">")[0])


@dataclass
class Transcript:
    """Commands with their expected output.

    The text has a line per command. The prompt is `$`, or `~` for read-only commands that are
    repeated until the output is as expected. Lines that begin with `<` are the stdin of the
    command. All other lines are its output: stdout, stderr, and `[status]` unless it is 0. A line
    that ends in ` (re)` is a regular expression. A line that begins with `apache> ` or `kbroker> `
    is expected from that broker only. Empty lines and lines that begin with `#` are comments.

    `$NAME` is a variable. Each run of blanks counts as one. Stack traces and log lines are ignored,
    and the names in a line of JSON are sorted. Values that differ between runs are replaced by TIME
    or ID. A command may end in `| sort [-u]` or `| grep [-o] PATTERN`. `write FILE` writes its
    stdin to a file.
    """

    steps: list[Step | str]

    @classmethod
    def parse(cls, text: str) -> Transcript:
        steps: list[Step | str] = []
        for line in text.splitlines():
            last = steps[-1] if steps else ""
            if line[:2] in ("$ ", "~ "):
                steps.append(Step(line[0], line[2:]))
            elif line.startswith("#") or not line or isinstance(last, str):
                steps.append(line)
            elif line.startswith("<") and not last.expected:
                last.stdin.append(line[2:])
            else:
                last.expected.append(line)
        return cls(steps)

    def text(self) -> str:
        """Return the text of the transcript file."""
        return "".join(
            step.text() if isinstance(step, Step) else f"{step}\n" for step in self.steps
        )

    def commands(self) -> Iterator[Step]:
        return (step for step in self.steps if isinstance(step, Step))


@dataclass
class Shell:
    """Runs the steps of transcripts.

    Attributes:
        tools: Runs the commands.
        broker: "kbroker" or "apache", whose output is expected.
        variables: Values of `$NAME`, replaced by the name in the output.
        patience: Maximum time to repeat a step with the prompt `~`, in seconds.
    """

    tools: Tools
    broker: str
    variables: Mapping[str, str]
    patience: float = 10.0

    def differs(self, step: Step) -> list[str] | None:
        """Run a step, and return its output if that is not as expected, else None."""
        deadline = time.monotonic() + self.patience
        expected = step.expected_of(self.broker)
        while True:
            seen = self._run_once(step)
            if fits(expected, seen):
                return None
            if step.prompt == "$" or not expected or time.monotonic() > deadline:
                return seen
            time.sleep(0.1)

    def _run_once(self, step: Step) -> list[str]:
        command, *filters = (part.strip() for part in step.command.split(" | "))
        name, *arguments = shlex.split(self._substitute(command))
        stdin = "".join(self._substitute(line) + "\n" for line in step.stdin)
        if name == "write":
            Path(arguments[0]).write_text(stdin)
            return []
        output = self.tools.run(name, *arguments, stdin=stdin)
        lines = self._normalize(output.stdout) + self._normalize(output.stderr)
        for one in filters:
            lines = _apply_filter(lines, *shlex.split(one))
        return lines if output.status == 0 else [*lines, f"[{output.status}]"]

    def _substitute(self, text: str) -> str:
        for name, value in self.variables.items():
            text = text.replace(f"${name}", value)
        return text

    def _normalize(self, text: str) -> list[str]:
        for name, value in self.variables.items():
            text = text.replace(value, f"${name}")
        text = "\n".join(_sort_json(line) for line in text.splitlines() if not is_java(line))
        for pattern, word in _VOLATILE:
            text = pattern.sub(word, text)
        lines = [" ".join(line.split()) for line in text.splitlines()]
        return [line for line in lines if line]


# Stack traces and log lines. Clients that earlier tools left in the JVM may log at any time.
_NOISE = re.compile(r"\s+at [\w.$]+\S*\(|\s*\.\.\. \d+ (more|common)|\d\d:\d\d:\d\d\.\d{3} [A-Z]+ ")


def is_java(line: str) -> bool:
    """Return True if a line belongs to a stack trace or a log."""
    return _NOISE.match(line) is not None


_BROKER_LINE = re.compile(r"(?P<broker>apache|kbroker)> (?P<line>.*)")
# Values that differ between runs, and their replacements.
_VOLATILE = (
    (re.compile(r"\b1[6-9]\d{11}\b"), "TIME"),
    (re.compile(r'(TopicId: |"topicId":")[\w-]{22}'), r"\1ID"),
    (re.compile(r"console-consumer-[\da-f-]+"), "console-consumer-ID"),
)


def _sort_json(line: str) -> str:
    """Sort the names in a line that is a JSON object, because Java's order varies between JVMs."""
    if not line.startswith("{"):
        return line
    try:
        return json.dumps(json.loads(line), sort_keys=True, separators=(",", ":"))
    except ValueError:
        return line


def _apply_filter(lines: list[str], command: str, *arguments: str) -> list[str]:
    match (command, *arguments):
        case ("sort",):
            return sorted(lines)
        case ("sort", "-u"):
            return sorted(set(lines))
        case ("grep", pattern):
            return [line for line in lines if re.search(pattern, line)]
        case ("grep", "-v", pattern):
            return [line for line in lines if not re.search(pattern, line)]
        case ("grep", "-o", pattern):
            return [found.group() for line in lines for found in re.finditer(pattern, line)]
    raise ValueError(f"no such filter: {command} {arguments}")


def fits(expected: list[str], seen: list[str]) -> bool:
    """Return True if every line is as expected."""
    return len(expected) == len(seen) and all(
        re.fullmatch(line.removesuffix(" (re)"), got) if line.endswith(" (re)") else line == got
        for line, got in zip(expected, seen, strict=True)
    )
