"""`kbroker serve`: run a broker in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from .declared_options import declared_options
from .lazy import uncollected
from .settings import option, setting_options, split_overrides
from .target import fail
from .units import DURATION

NODES_MAX = 100
START_FAILED = 3
EXCLUDED = {
    "cluster": ("memory", "nodes", "processes", "racks", "control_port", "tls_dev"),
    "processes": ("memory", "nodes", "control_port", "idle_seconds"),
}
"""What does not go with an option."""
NAMES = {"control_port": "control-port", "idle_seconds": "idle-timeout", "tls_dev": "tls-dev"}


@click.command()
@setting_options
@option("--memory", is_flag=True, help="Keep everything in memory; all is gone at the end.")
@option(
    "--tls-dev",
    is_flag=True,
    help="Ask clients for TLS and a login: makes an authority, a certificate and an administrator, and"
    " says what clients need.",
)
@option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    help="Run so many nodes, each with ports and a directory of its own.  [default: as many as the data"
    " directory has, or 1]",
)
@option(
    "--processes",
    type=click.IntRange(2, NODES_MAX),
    help="Run so many nodes, each in a process of its own, to use as many processor cores; otherwise"
    " as --nodes.",
)
@option(
    "--cluster",
    metavar="etcd://HOST:2379,.../NAME",
    help="Be one node of a cluster whose nodes run in processes of their own, on one machine or many,"
    " with its metadata on etcd. Each has a --node-id, a --data-dir and an address of its own.",
)
@option("--node-id", type=click.IntRange(0), help="The id of the first node.  [default: 1]")
@option(
    "--racks",
    metavar="A,B,...",
    callback=lambda _context, _option, text: text.split(",") if text else [],
    help="Where the nodes are, in their order; replicas are spread over racks.",
)
@declared_options
@option(
    "--port-file",
    type=click.Path(dir_okay=False),
    help="Write HOST:PORT here once ready; with suffix .json the whole ready event.",
)
@option("--ready-fd", type=int, help="Write the ready event to this descriptor, then close it.")
@option("--json", "as_json", is_flag=True, help="Print events as one JSON object a line.")
@option(
    "--log-level",
    "log_levels",
    multiple=True,
    metavar="[LOGGER=]LEVEL",
    help="Such as warning, or kbroker.protocol=debug.",
)
@option(
    "--log-compat",
    type=click.Choice(["kafka"]),
    help="Print the lines too by which others know from Kafka's log that it runs.",
)
@option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@option(
    "--audit-log",
    "audit_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write who was denied what, who came in, and who changed ACLs and users to FILE. It is set"
    " aside at 10 MiB, and nine of those are kept.",
)
@option(
    "--grace",
    "grace_seconds",
    type=DURATION,
    default="5s",
    show_default=True,
    help="How long a graceful stop may take.",
)
@option("--exit-with-parent", is_flag=True, help="Stop when the parent process is gone.")
@option(
    "--idle-timeout",
    "idle_seconds",
    type=DURATION,
    help="Stop when no client was connected for this long, for example 10m.",
)
@option(
    "--control-port",
    type=click.IntRange(0, 65535),
    help="Take commands of tests here, on 127.0.0.1: faults, clocks and more. 0 is a free port.",
)
@option(
    "--control-token-file",
    type=click.Path(dir_okay=False),
    help="The token that commands need is in this file, which is made if it is not there."
    "  [default: a new file, which the banner names]",
)
@option(
    "--faulty-disk",
    "disk",
    is_flag=True,
    help="With --memory and --control-port: a disk in memory that commands can break.",
)
def serve(**options: Any) -> None:
    """Run a broker until Ctrl+C or SIGTERM."""
    with uncollected():
        from kbroker.config import ConfigError
        from kbroker.process.errors import StartFailed
        from kbroker.process.options import ServeOptions
        from kbroker.process.serving import run_server

    if options["memory"] and options["data_dir"]:
        raise click.UsageError("--memory and --data-dir exclude each other")
    if options["disk"] and not (options["memory"] and options["control_port"] is not None):
        raise click.UsageError("--faulty-disk goes with --memory and --control-port")
    if options["as_json"] and options["log_compat"]:
        raise click.UsageError("--json and --log-compat exclude each other")
    for name, others in EXCLUDED.items():
        if options[name]:
            _check_goes_with(name, others)
    overrides = split_overrides(options.pop("overrides"))
    settings = ServeOptions(overrides=overrides, **options)
    try:
        run_server(settings)
    except (StartFailed, ConfigError) as error:
        sys.stdout.flush()
        fail(str(error), START_FAILED)


def _check_goes_with(name: str, others: Sequence[str]) -> None:
    """Refuse what an option excludes."""
    context = click.get_current_context()
    for other in others:
        if context.get_parameter_source(other) is not ParameterSource.DEFAULT:
            first, second = (f"--{NAMES.get(each, each)}" for each in (name, other))
            raise click.UsageError(f"{first} and {second} exclude each other")
