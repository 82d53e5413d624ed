"""Web service that accepts sign-ups over HTTP and creates a welcome mail for each.

POST /signups returns when the sign-up is written to topic `signups`. A background worker turns it
into a record in `mails`. A sign-up that is delivered twice produces the same mail with the same
key. Invalid sign-ups go to `signups.dead`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from aiokafka.errors import CommitFailedError, KafkaError
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel


class Signup(BaseModel):
    name: str
    address: str


def create_app() -> FastAPI:
    app = FastAPI(lifespan=lifespan)

    @app.post("/signups", status_code=202)
    async def sign_up(signup: Signup) -> dict[str, int]:
        try:
            place = await app.state.producer.send_and_wait(
                "signups", signup.model_dump_json().encode(), key=signup.address.encode()
            )
        except KafkaError as error:
            raise HTTPException(503, "please try again") from error
        return {"partition": place.partition, "offset": place.offset}

    return app


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    servers = os.environ["KAFKA_BOOTSTRAP_SERVERS"]
    consumer = AIOKafkaConsumer(
        "signups",
        bootstrap_servers=servers,
        group_id="welcome",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=500,
        retry_backoff_ms=20,
    )
    async with (
        AIOKafkaProducer(
            bootstrap_servers=servers, enable_idempotence=True, retry_backoff_ms=20
        ) as producer,
        consumer,
        asyncio.TaskGroup() as tasks,
    ):
        app.state.producer = producer
        worker = tasks.create_task(welcome(consumer, producer))
        yield
        worker.cancel()


async def welcome(consumer: AIOKafkaConsumer, producer: AIOKafkaProducer) -> None:
    """Create a mail for each sign-up, until cancelled."""
    async for record in consumer:
        topic, value = mail_for(record)
        await producer.send_and_wait(topic, value, key=record.key)
        with suppress(
            CommitFailedError
        ):  # The group has rebalanced: the sign-up is delivered again.
            await consumer.commit()


def mail_for(record: ConsumerRecord) -> tuple[str, bytes]:
    """Return the topic and the value to write."""
    try:
        signup = Signup.model_validate_json(record.value)
    except ValueError:
        return "signups.dead", record.value
    mail = {"to": signup.address, "text": f"Welcome, {signup.name}!"}
    return "mails", json.dumps(mail).encode()


app = create_app()
