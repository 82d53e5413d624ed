"""`python -m kbroker` is the `kbroker` command."""

from .cli import main

main()
