"""The `kbroker fault` command: injects faults into a broker started with `--control-port`."""

from __future__ import annotations

import click

from .control import Control, ask, control_options
from .lazy import CommandGroup
from .output import say


@click.group(cls=CommandGroup)
def fault() -> None:
    """Inject faults into a broker; it must run with --control-port."""


@fault.command()
@control_options
@click.argument("api", nargs=-1)
@click.option(
    "--error",
    metavar="NAME",
    help="Respond with this error code, for example NOT_LEADER_OR_FOLLOWER.",
)
@click.option(
    "--effect",
    metavar="NAME",
    help="Fault to inject: disconnect, delay, throttle, blackhole, truncate_response, "
    "duplicate_response or corrupt_batch.",
)
@click.option(
    "--after",
    is_flag=True,
    help="Process the request first, then inject the fault into the response.",
)
@click.option("--topic", help="Match requests for this topic.")
@click.option(
    "--top-level",
    is_flag=True,
    help="Return the error at the top level of the response, not per partition.",
)
@click.option(
    "--partition",
    type=int,
    multiple=True,
    help="Match requests for this partition; can be given several times.",
)
@click.option("--group", help="Match requests of this group.")
@click.option("--client-id", help="Match requests of clients with this client ID.")
@click.option("--transactional-id", help="Match requests with this transactional ID.")
@click.option("--resource", help="Match config requests for this resource.")
@click.option(
    "--versions",
    metavar="FIRST[-LAST]",
    help="Match these versions of the API, for example 3 or 0-3.",
)
@click.option(
    "--on-call",
    type=int,
    metavar="N",
    help="Start with the N-th matching request; skip the others.",
)
@click.option("--times", type=int, metavar="N", help="Number of requests to hit.  [default: 1]")
@click.option("--always", is_flag=True, help="Hit all matching requests.")
@click.option(
    "--until",
    metavar="API",
    help="After the first hit of a client, hit that client until it sends a request of this API.",
)
@click.option(
    "--probability",
    type=float,
    metavar="P",
    help="Hit each matching request with this probability.",
)
@click.option("--seed", type=int, help="Random seed for --probability, to reproduce a run.")
@click.option("--ms", type=float, help="Duration of a delay or throttling in milliseconds.")
@click.option(
    "--bit", type=int, help="With corrupt_batch: number of the bit to flip after the batch header."
)
@click.option(
    "--optional", is_flag=True, help="Do not let `fault check` fail if this fault hits nothing."
)
def arm(control: Control, after: bool, versions: str | None, **options: object) -> None:
    """Arm a fault for requests of API... (Produce, Fetch, ...), or of all APIs; print its number."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if versions is not None:
        first, _, last = versions.partition("-")
        try:
            given["versions"] = [int(first), int(last or first)]
        except ValueError:
            raise click.UsageError(
                f"invalid --versions {versions!r}; expected FIRST or FIRST-LAST"
            ) from None
    answer = ask(control, do="fault", at="after" if after else "before", **given)
    say(answer["fault"])


@fault.command()
@control_options
@click.argument("number", type=int)
@click.option(
    "--wait", type=int, default=0, metavar="N", help="Wait until the fault has hit N requests."
)
@click.option(
    "--timeout", type=float, default=5.0, show_default=True, help="Timeout of --wait in seconds."
)
def hits(control: Control, number: int, wait: int, timeout: float) -> None:
    """Print the number of requests that fault NUMBER has hit."""
    say(ask(control, do="hits", fault=number, wait=wait, timeout=timeout)["hits"])


@fault.command()
@control_options
@click.argument("number", type=int)
def disarm(control: Control, number: int) -> None:
    """Disarm fault NUMBER."""
    ask(control, do="disarm", fault=number)


@fault.command()
@control_options
def check(control: Control) -> None:
    """Exit with an error if a fault has hit nothing, and print the closest requests."""
    ask(control, do="check")
