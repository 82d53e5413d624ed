"""Schemas of another registry: unsuccessful look-ups are repeated later."""

from __future__ import annotations

import traceback
from typing import Any, cast

import pytest

from kbroker.client.schema_registry import SchemaError, UnknownSchemaError
from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.remote import RemoteSchemas


class FailingRegistry:
    """A registry whose look-ups fail."""

    def __init__(self, error: Exception) -> None:
        self.calls = 0
        self._error = error

    def any_schema(self, _: int | str) -> object:
        self.calls += 1
        raise self._error


@pytest.mark.parametrize("error", [SchemaError("no response"), UnknownSchemaError()])
async def test_repeated_error_keeps_no_frames_of_earlier_look_ups(error: Exception) -> None:
    """Each record with the schema raises the error again, within ten seconds."""
    registry = FailingRegistry(error)
    schemas = RemoteSchemas(cast(Any, registry))
    depths = []
    for _ in range(5):
        with pytest.raises(RegistryError) as caught:
            await schemas.find(1, "orders-value")
        depths.append(len([*traceback.walk_tb(caught.value.__traceback__)]))
    assert registry.calls == 1
    assert depths[1:] == depths[1:2] * 4
