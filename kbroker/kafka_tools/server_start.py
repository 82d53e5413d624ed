"""The kafka-server-start tool: starts a broker with a properties file."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Parser


def main(arguments: Sequence[str]) -> None:
    """Run the tool."""
    parser = Parser("kafka-server-start", "kbroker serve")
    parser.add_argument("file", metavar="server.properties")
    parser.add_lists("--override")
    parser.add_ignored("-daemon", flag=True)
    options = parser.parse_args(arguments)
    if options.daemon:
        parser.exit_with_message("-daemon is not supported; run the broker under a service manager")
    from kbroker.cli.serve import serve

    settings = [word for text in options.override for word in ("-o", text)]
    serve_arguments = ["--config", options.file, "--log-compat", "kafka", *settings]
    serve.main(serve_arguments, prog_name=parser.prog)
