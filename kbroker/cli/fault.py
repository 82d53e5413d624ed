"""`kbroker fault`: arm faults in a broker that runs with `--control-port`."""

from __future__ import annotations

import click

from .control import Control, ask, control_options
from .output import say


@click.group()
def fault() -> None:
    """Let a broker fail on demand; it must run with --control-port."""


@fault.command()
@control_options
@click.argument("api", nargs=-1)
@click.option("--error", metavar="NAME", help="Answer with this error.")
@click.option(
    "--effect",
    metavar="NAME",
    help="disconnect, delay, throttle, blackhole, truncate_response, duplicate_response "
    "or corrupt_batch.",
)
@click.option("--after", is_flag=True, help="Do the work first, then lie about it.")
@click.option("--topic")
@click.option("--top-level", is_flag=True, help="Put the error beside the rows of the answer.")
@click.option("--partition", type=int, multiple=True, help="Can be given several times.")
@click.option("--group")
@click.option("--client-id")
@click.option("--transactional-id")
@click.option("--resource", help="Whose settings a request is about.")
@click.option("--versions", metavar="FIRST[-LAST]", help="Of the API.")
@click.option(
    "--on-call", type=int, metavar="N", help="Let matching requests pass before number N."
)
@click.option("--times", type=int, metavar="N", help="Hit so many of them.")
@click.option("--always", is_flag=True, help="Hit all matching requests.")
@click.option(
    "--until", metavar="API", help="Hit each client until it has sent this after the first hit."
)
@click.option("--probability", type=float, metavar="P", help="Hit each with this probability.")
@click.option("--seed", type=int, help="Of the probability, to repeat a run.")
@click.option("--ms", type=float, help="How long a delay or throttling is.")
@click.option("--bit", type=int, help="Which bit of a batch to flip, behind its header.")
@click.option(
    "--optional", is_flag=True, help="`fault check` does not fail if this fault hits nothing."
)
def arm(control: Control, after: bool, versions: str | None, **words: object) -> None:
    """Arm a fault for the requests of API... (Produce, Fetch, ...), or for all; prints its number."""
    given = {name: value for name, value in words.items() if value not in (None, ())}
    if versions is not None:
        first, _, last = versions.partition("-")
        try:
            given["versions"] = [int(first), int(last or first)]
        except ValueError:
            raise click.UsageError(f"--versions {versions} is not FIRST or FIRST-LAST") from None
    answer = ask(control, do="fault", at="after" if after else "before", **given)
    say(answer["fault"])


@fault.command()
@control_options
@click.argument("number", type=int)
@click.option("--wait", type=int, default=0, metavar="N", help="Wait until it has hit N requests.")
@click.option("--timeout", type=float, default=5.0, show_default=True, help="Seconds.")
def hits(control: Control, number: int, wait: int, timeout: float) -> None:
    """Print how many requests fault NUMBER has hit."""
    say(ask(control, do="hits", fault=number, wait=wait, timeout=timeout)["hits"])


@fault.command()
@control_options
@click.argument("number", type=int)
def disarm(control: Control, number: int) -> None:
    """Let fault NUMBER hit nothing more."""
    ask(control, do="disarm", fault=number)


@fault.command()
@control_options
def check(control: Control) -> None:
    """Fail when a fault hit nothing, and say what came closest."""
    ask(control, do="check")
