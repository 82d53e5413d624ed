"""The `kbroker serve` command: runs a broker in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from .declared_options import declared_options
from .lazy import without_garbage_collection
from .settings import option, parse_broker_settings, setting_options
from .target import fail
from .units import DURATION

NODES_MAX = 100
START_FAILED = 3
# Options that cannot be combined with an option.
EXCLUDED = {
    "cluster": ("memory", "nodes", "processes", "racks", "control_port", "tls_dev"),
    "processes": ("memory", "nodes", "control_port", "idle_seconds"),
    # The command `cap_versions` of the control port does the same.
    "as_version": ("control_port",),
}
NAMES = {
    "as_version": "as-version",
    "control_port": "control-port",
    "idle_seconds": "idle-timeout",
    "tls_dev": "tls-dev",
}


@click.command()
@setting_options
@option("--memory", is_flag=True, help="Keep all data in memory; it is lost when the broker stops.")
@option(
    "--tls-dev",
    is_flag=True,
    help="Require TLS and authentication: create a CA, a certificate and an administrator, and "
    "print the settings that clients need.",
)
@option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    help="Run this number of nodes, each with its own ports and data directory.  [default: as many "
    "as the data directory has, or 1]",
)
@option(
    "--processes",
    type=click.IntRange(2, NODES_MAX),
    help="Run this number of nodes, each in its own process, to use several CPU cores. All accept "
    "clients on --port; the nodes use the ports after it.",
)
@option(
    "--cluster",
    metavar="etcd://HOST:2379,.../NAME",
    help="Run one node of a cluster whose nodes run in separate processes, on one or more "
    "machines, with its metadata on etcd. Each node needs its own --node-id, --data-dir and "
    "address.",
)
@option("--node-id", type=click.IntRange(0), help="ID of the first node.  [default: 1]")
@option(
    "--racks",
    metavar="A,B,...",
    callback=lambda _context, _option, text: text.split(",") if text else [],
    help="Racks of the nodes, in node order; replicas are spread over racks.",
)
@declared_options
@option(
    "--port-file",
    type=click.Path(dir_okay=False),
    help="Write HOST:PORT to this file once the broker is ready; if its suffix is .json, write the "
    "whole ready event.",
)
@option(
    "--ready-fd", type=int, help="Write the ready event to this file descriptor, then close it."
)
@option("--json", "as_json", is_flag=True, help="Print events as NDJSON.")
@option(
    "--log-level",
    "log_levels",
    multiple=True,
    metavar="[LOGGER=]LEVEL",
    help="Log level of all loggers or one logger, such as warning or kbroker.protocol=debug; can "
    "be given several times.",
)
@option(
    "--log-compat",
    type=click.Choice(["kafka"]),
    help="Also print the startup lines of Apache Kafka's log that health checks look for.",
)
@option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of log lines.",
)
@option(
    "--audit-log",
    "audit_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write an audit log to FILE: denied requests, authentications, and changes of ACLs and "
    "users. It is rotated at 10 MiB; nine old files are kept.",
)
@option(
    "--grace",
    "grace_seconds",
    type=DURATION,
    default="5s",
    show_default=True,
    help="Maximum time for a graceful shutdown.",
)
@option("--exit-with-parent", is_flag=True, help="Stop when the parent process exits.")
@option(
    "--idle-timeout",
    "idle_seconds",
    type=DURATION,
    help="Stop when no client has been connected for this time, for example 10m.",
)
@option(
    "--as-version",
    metavar="RELEASE",
    help="Serve only the API versions of this release of Apache Kafka (0.10 to 4.4) to clients, for "
    "example 3.9.",
)
@option(
    "--control-port",
    type=click.IntRange(0, 65535),
    help="Open a control port for tests on 127.0.0.1, with commands for faults, clocks and more; 0 "
    "means a free port.",
)
@option(
    "--control-token-file",
    type=click.Path(dir_okay=False),
    help="File with the token for the control port; created if it does not exist.  [default: a new "
    "file, named in the banner]",
)
@option(
    "--faulty-disk",
    "disk",
    is_flag=True,
    help="With --memory and --control-port: keep data on an in-memory disk in which commands can "
    "inject faults.",
)
def serve(**options: Any) -> None:
    """Run a broker until Ctrl+C or SIGTERM."""
    with without_garbage_collection():
        from kbroker.config import ConfigError
        from kbroker.process.errors import StartFailed
        from kbroker.process.options import ServeOptions
        from kbroker.process.serving import run_server

    if options["memory"] and options["data_dir"]:
        raise click.UsageError("--memory and --data-dir exclude each other")
    if options["disk"] and not (options["memory"] and options["control_port"] is not None):
        raise click.UsageError("--faulty-disk needs --memory and --control-port")
    if options["as_json"] and options["log_compat"]:
        raise click.UsageError("--json and --log-compat exclude each other")
    for name, others in EXCLUDED.items():
        if options[name]:
            _check_not_combined(name, others)
    overrides = parse_broker_settings(options.pop("overrides"))
    settings = ServeOptions(overrides=overrides, **options)
    try:
        run_server(settings)
    except (StartFailed, ConfigError) as error:
        sys.stdout.flush()
        fail(str(error), START_FAILED)


def _check_not_combined(name: str, others: Sequence[str]) -> None:
    """Raise UsageError if an option is combined with one that it excludes."""
    context = click.get_current_context()
    for other in others:
        if context.get_parameter_source(other) is not ParameterSource.DEFAULT:
            first, second = (f"--{NAMES.get(each, each)}" for each in (name, other))
            raise click.UsageError(f"{first} and {second} exclude each other")
