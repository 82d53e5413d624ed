"""Stream processor that sums the orders of each customer, from topic `orders` to topic `totals`.

The sums are in the state of quixstreams, which a changelog topic makes durable. The state contains
the order IDs, so an order counts once even if it is sent or delivered repeatedly. Invalid orders go
to `orders.dead`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from quixstreams import Application, State


def create_app(bootstrap_servers: str, state_dir: Path, **settings: Any) -> Application:
    """Return the processor; `settings` are additional parameters of quixstreams' Application."""
    app = Application(
        bootstrap_servers,
        consumer_group="totals",
        auto_offset_reset="earliest",
        commit_interval=0.2,
        state_dir=state_dir,
        consumer_extra_config={"heartbeat.interval.ms": 500, "reconnect.backoff.ms": 20},
        loglevel="WARNING",
        **settings,
    )
    orders = app.dataframe(app.topic("orders", value_deserializer="bytes"))
    orders.filter(lambda value: parsed(value) is None).to_topic(
        app.topic("orders.dead", value_serializer="bytes")
    )
    good = orders.apply(parsed).filter(lambda order: order is not None)
    good.apply(add, stateful=True).to_topic(app.topic("totals"))
    return app


def parsed(value: bytes) -> dict[str, Any] | None:
    """Return an order, or None if it is invalid."""
    try:
        order = json.loads(value)
        return {"id": str(order["id"]), "cents": int(order["cents"])}
    except (ValueError, KeyError, TypeError):
        return None


def add(order: dict[str, Any], state: State) -> dict[str, int]:
    """Return the customer's sum including this order."""
    counted = state.get("orders", {})
    counted[order["id"]] = order["cents"]
    state.set("orders", counted)
    return {"cents": sum(counted.values())}


if __name__ == "__main__":
    create_app(os.environ["KAFKA_BOOTSTRAP_SERVERS"], Path("state")).run()
