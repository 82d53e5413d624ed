"""Entry point of `python -m kbroker`, the same as the command `kbroker`."""

from .cli import main

main()
