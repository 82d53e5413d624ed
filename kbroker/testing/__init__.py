"""Test kit for software that uses Kafka: brokers, faults, waits, and a pytest plugin.

Importing this package does not import trio or the server. The first access to one of its names
imports the module that defines it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .async_broker import RunningBroker, open_test_broker
    from .broker_thread import BrokerThread
    from .dead_letters import DeadLetter
    from .external import ExternalKafka
    from .fault import Fault, UnfiredFault
    from .kafka_record import KafkaRecord
    from .kit import WaitTimeout
    from .local import LocalBroker
    from .process_broker import ProcessBroker
    from .snapshot import Snapshot
    from .unittest_case import KafkaTestCase

__all__ = [
    "BrokerThread",
    "DeadLetter",
    "ExternalKafka",
    "Fault",
    "KafkaRecord",
    "KafkaTestCase",
    "LocalBroker",
    "ProcessBroker",
    "RunningBroker",
    "Snapshot",
    "UnfiredFault",
    "WaitTimeout",
    "open_test_broker",
]

_MODULES = {
    "BrokerThread": "broker_thread",
    "DeadLetter": "dead_letters",
    "ExternalKafka": "external",
    "Fault": "fault",
    "KafkaRecord": "kafka_record",
    "KafkaTestCase": "unittest_case",
    "LocalBroker": "local",
    "ProcessBroker": "process_broker",
    "Snapshot": "snapshot",
    "RunningBroker": "async_broker",
    "UnfiredFault": "fault",
    "WaitTimeout": "kit",
    "open_test_broker": "async_broker",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .patched_threads import check_threads

    check_threads()
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
