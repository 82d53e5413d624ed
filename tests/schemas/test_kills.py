"""Registration of schemas through repeated kills, and compaction of the result.

The default number of schemas is small; pass `--schemas=10000` for a long run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.endpoint import Endpoint
from kbroker.testing import LocalBroker

from .kills import Load, Registration, RegistryConnection, RegistryServer, ids_of, registrations

TOPIC = "_schemas"
SCHEMAS_A_KILL = 400
KILLS_MIN = 2
# The number of a schema that is registered only at the end.
NEW_SCHEMA = 1_000_000_000


@pytest.mark.slow
def test_schema_ids_stay_unique_and_durable_through_kills_and_compaction(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    schemas = pytestconfig.getoption("--schemas")
    server = RegistryServer(tmp_path)
    wanted = [*registrations(schemas)]
    load = Load(server, wanted)
    kills = max(KILLS_MIN, schemas // SCHEMAS_A_KILL)
    seconds = 0.0
    for number in range(kills):
        with server.running():
            begun = time.monotonic()
            if not number:
                begin(server, load)
            load.wait_for(len(wanted) * (number + 1) // (kills + 1))
            seconds += time.monotonic() - begun
    assert load.interrupted
    with server.running():
        begun = time.monotonic()
        load.join()
        seconds += time.monotonic() - begun
    assert len(load.acknowledged) == len(wanted)
    ids = ids_of(load.acknowledged)

    begun = time.monotonic()
    with server.running(), server.connect() as client:
        ready = time.monotonic() - begun
        assert client.ask("GET", f"/schemas/ids/{ids[schemas - 1]}")
        read = time.monotonic() - begun
        check(client, load.acknowledged, ids)
        before = delete_some_subjects(client)
    records, left = compacted(server.data_dir, before, ids.values())
    print(
        f"\nfigures: {len(wanted):,} registrations of {schemas:,} schemas, {len(wanted) / seconds:,.0f}/s; "
        f"{kills} kills, {load.interrupted} registrations cut off; started in {ready:.1f} s, with all "
        f"schemas read in {read:.1f} s; compacted from {records:,} records to {left:,}"
    )


def begin(server: RegistryServer, load: Load) -> None:
    """Disable compatibility checks and start the load."""
    with server.connect() as client:
        client.ask("PUT", "/config", {"compatibility": "NONE"})
    load.start()


def check(
    client: RegistryConnection,
    acknowledged: Sequence[tuple[Registration, int]],
    ids: Mapping[int, int],
) -> None:
    """Check that the registry serves exactly the acknowledged schemas, with unique IDs."""
    rows = client.ask("GET", "/schemas")
    texts: dict[int, str] = {}
    for row in rows:
        assert texts.setdefault(row["id"], row["schema"]) == row["schema"]
    assert len(set(texts.values())) == len(texts)
    served = {(row["subject"], row["schema"]): row["id"] for row in rows}
    assert len(served) == len(rows)
    canonical = {number: texts[schema_id] for number, schema_id in ids.items()}
    assert all(json.loads(text)["name"] == f"Order{each}" for each, text in canonical.items())
    for registration, schema_id in acknowledged:
        assert served[registration.subject, canonical[registration.number]] == schema_id
    assert {each for each, _ in acknowledged} == {
        Registration(row["subject"], int(json.loads(row["schema"])["name"][len("Order") :]))
        for row in rows
    }


def delete_some_subjects(client: RegistryConnection) -> dict[str, Any]:
    """Delete some subjects, one of them permanently. Return the remaining state."""
    for level in ("FULL", "BACKWARD", "NONE"):
        client.ask("PUT", "/config/subject-2", {"compatibility": level})
    client.ask("DELETE", "/subjects/subject-1")
    client.ask("DELETE", "/subjects/subject-0")
    client.ask("DELETE", "/subjects/subject-0?permanent=true")
    return state_of(client)


def state_of(client: RegistryConnection) -> dict[str, Any]:
    """Return the complete visible state of a registry."""
    paths = ("/schemas?deleted=true", "/schemas", "/subjects?deleted=true", "/config/subject-2")
    return {path: client.ask("GET", path) for path in (*paths, "/config", "/mode")}


def compacted(directory: Path, before: Mapping[str, Any], ids: Iterable[int]) -> tuple[int, int]:
    """Compact the topic, check that the state is unchanged, and return both record counts."""
    config = {"log.roll.ms": 1, "log.cleaner.min.cleanable.ratio": 0}
    with LocalBroker(data_dir=str(directory), config=config, schema_registry=True) as broker:
        with connected(broker) as client:
            assert state_of(client) == before
            roll(client)
            records = broker.records(TOPIC)
            broker.clock.advance(seconds=1)
            left = broker.records(TOPIC)
            kept = {each.key: each.value for each in left}
            assert kept == {each.key: each.value for each in records}
            assert len(left) < len(records)
            assert state_of(client) == before
        broker.restart()
        with connected(broker) as client:
            assert state_of(client) == before
            assert client.register(Registration("subject-3", NEW_SCHEMA)) == max(ids) + 1
    return len(records), len(left)


def roll(client: RegistryConnection) -> None:
    """Write without changes until the earlier records are in closed segments."""
    for _ in range(2):
        client.ask("PUT", "/config/subject-2", {"compatibility": "NONE"})


def connected(broker: LocalBroker) -> RegistryConnection:
    """Return a client of the broker's registry."""
    return RegistryConnection(Endpoint.parse(broker.schema_registry_url.removeprefix("http://")))
