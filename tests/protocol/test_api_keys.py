from __future__ import annotations

import warnings

from kbroker.protocol.api_keys import ApiKey

CONTROLLER_ONLY = {52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82}
# Keys that kafka-python does not have yet.
NEW_IN_4_4 = {ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, ApiKey.UNREGISTER_CONTROLLER}


def test_api_keys_are_those_of_a_broker_listener() -> None:
    assert len(ApiKey) == 79
    assert set(ApiKey) == set(range(95)) - {4, 5, 6, 7} - CONTROLLER_ONLY


def test_api_names_equal_those_of_kafka() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.protocol.api_key import ApiKey as Theirs

    known = set(ApiKey) - NEW_IN_4_4
    assert {key: key.api_name for key in known} == {key: Theirs(key).name for key in known}
