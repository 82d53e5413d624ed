"""The command line against a broker in this process."""

from ..cli.conftest import cli, no_settings_of_this_machine, read_json

__all__ = ["cli", "no_settings_of_this_machine", "read_json"]
