"""The `kbroker fault arm` command."""

from __future__ import annotations

import click

from kbroker.cli.fault import arm
from kbroker.testing.fault_arguments import EFFECTS, FAULT_ARGUMENTS


def test_fault_arm_has_option_for_every_fault_argument() -> None:
    options = {option.name for option in arm.params}
    assert set(FAULT_ARGUMENTS) - {"at"} <= options
    effect_option = next(option for option in arm.params if option.name == "effect")
    assert isinstance(effect_option, click.Option)
    assert [
        name for name in EFFECTS if name not in (effect_option.help or "") and name != "pass"
    ] == []
