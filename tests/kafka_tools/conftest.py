"""Kafka's tools against a broker in this process."""

from ..cli.conftest import cli, no_settings_of_this_machine

__all__ = ["cli", "no_settings_of_this_machine"]
