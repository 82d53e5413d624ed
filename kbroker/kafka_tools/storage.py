"""The kafka-storage tool: creates cluster IDs; formatting is not needed."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.cli.output import say

from .base import Parser


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-storage", "kbroker serve")
    parser.add_argument("verb")
    parser.add_argument("-t", "--cluster-id")
    parser.add_argument("-c", "--config")
    parser.add_argument("-f", "--feature", action="append")
    parser.add_argument("-r", "--release-version")
    parser.add_argument("-g", "--ignore-formatted", action="store_true")
    parser.add_argument("-s", "--standalone", action="store_true")
    parser.add_ignored("--no-initial-controllers", "-N", flag=True)
    options = parser.parse_args(arguments)
    if options.verb == "random-uuid":
        say(_random_id())
    elif options.verb == "format":
        if options.cluster_id is None or options.config is None:
            parser.error("format needs --cluster-id and --config")
        say(
            "Nothing to format: kbroker creates its data directory at the first start; set the "
            "environment variable CLUSTER_ID to choose the cluster ID"
        )
    else:
        parser.exit_with_message("the command is not supported (valid: random-uuid, format)")


def _random_id() -> str:
    """Return a random ID that does not start with a dash, as Kafka does."""
    from base64 import urlsafe_b64encode
    from uuid import uuid4

    while True:
        text = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
