from __future__ import annotations

from kbroker.protocol.errors import ErrorCode
from kbroker.storage.errors import CorruptLogError, StorageError


def test_storage_error_has_kafkas_error_code() -> None:
    assert StorageError("no space").code == ErrorCode.KAFKA_STORAGE_ERROR
    assert StorageError("no space").message == "no space"


def test_corruption_message_has_file_position_reason_and_command() -> None:
    error = CorruptLogError("data/orders-0/00000000000000000042.log", 4711, "wrong CRC")
    assert (error.path, error.position) == ("data/orders-0/00000000000000000042.log", 4711)
    message = str(error.message)
    assert "data/orders-0/00000000000000000042.log is damaged at byte 4711 (wrong CRC)" in message
    assert "kbroker log repair data/orders-0" in message
