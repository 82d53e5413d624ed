"""Benchmark of kbroker with compiled modules: `python -m benchmarks.compiled --write`.

Both variants are this checkout; `tests/compiled/making.py` builds the compiled one.
"""

from __future__ import annotations

from tests.compiled.making import CompileError, make

from .__main__ import HEADINGS, comparison_parser, render_section, run, write_section
from .brokers import ROOT, Kafka, Kbroker, Kfake
from .table import PEERS

PROGRAM = "benchmarks.compiled"
ROWS = ("ping", "pipelined", "rate", "transactions", "connections")
TITLE = "## Compiled"
INTRODUCTION = """\
Written by `python -m benchmarks.compiled`: kbroker with the modules on the request path compiled by mypyc
([performance](../explanation/performance.md)), compared with the same source interpreted, and with the others.
"""
DIRECTORY = ROOT / ".work" / "compiled"


class Compiled(Kbroker):
    """The compiled copy."""

    root = DIRECTORY


class Interpreted(Kbroker):
    """Broker of this checkout, not compiled."""

    name = "interpreted"


BROKERS = {"compiled": Compiled, "interpreted": Interpreted, "kafka": Kafka, "kfake": Kfake}


def main() -> None:
    parser = comparison_parser(PROGRAM, __doc__, BROKERS)
    options = parser.parse_args()
    options.rows = options.rows or ROWS
    try:
        make(DIRECTORY)
    except CompileError as error:
        parser.exit(1, f"benchmarks: {error}\n")
    report = run(options, BROKERS)
    text = render_section(report, TITLE, INTRODUCTION, HEADINGS, [Interpreted.name, *PEERS])
    print(text)
    if options.write:
        write_section(text, PROGRAM)


if __name__ == "__main__":
    main()
