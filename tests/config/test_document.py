"""The generated reference page of the settings."""

from __future__ import annotations

from kbroker.config import (
    BROKER_PROPERTIES,
    TOPIC_PROPERTIES,
    SettingEffect,
)
from kbroker.config.document import document

from .entries import ROOT


def test_committed_configuration_page_is_up_to_date() -> None:
    committed = (ROOT / "docs/reference/configuration.md").read_text()
    assert committed == document(), (
        "run: python -m kbroker.config > docs/reference/configuration.md"
    )


def test_configuration_page_lists_every_setting_and_difference() -> None:
    page = document()
    differences = page.split("## Differences from")[1].split("## DescribeConfigs")[0]
    for each in (*BROKER_PROPERTIES.values(), *TOPIC_PROPERTIES.values()):
        assert f"| `{each.name}` |" in page, each.name
        if (
            each.kbroker_only
            or each.kafka_default is not None
            or each.effect is not SettingEffect.APPLIED
        ):
            assert f"`{each.name}`" in differences, each.name
