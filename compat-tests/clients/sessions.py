"""Producer of confluent-kafka that outlives several SASL sessions of a listener.

Arguments: address, topic, seconds. Prints as JSON the number of written and failed records, the
errors that the library reported, and the number of connects per broker.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from confluent import SECURITY
from confluent_kafka import KafkaError, Message, Producer


def main(address: str, topic: str, seconds: float) -> None:
    errors: list[str] = []
    written: list[bool] = []
    connects: dict[str, int] = {}

    def on_stats(text: str) -> None:
        for name, each in json.loads(text)["brokers"].items():
            connects[name] = each["connects"]

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        written.append(error is None)

    settings: dict[str, Any] = {
        **SECURITY,
        "bootstrap.servers": address,
        "error_cb": lambda error: errors.append(str(error)),
        "stats_cb": on_stats,
        "statistics.interval.ms": 500,
        "linger.ms": 0,
    }
    producer = Producer(settings)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        producer.produce(topic, b"x", on_delivery=on_delivery)
        producer.poll(0.01)
    left = producer.flush(30)
    failed = written.count(False) + left
    print(
        json.dumps(
            {
                "written": written.count(True),
                "failed": failed,
                "errors": errors,
                "connects": connects,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
