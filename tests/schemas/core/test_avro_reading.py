"""Avro schemas that refer to each other."""

from __future__ import annotations

from kbroker.schemas.core.avro import AvroSchema
from kbroker.schemas.core.registry import CheckTask
from kbroker.schemas.core.values import AVRO, Content, Level
from kbroker.schemas.core.work import Rejected, run

from ..attacks import Attack


def test_long_chain_of_mutually_recursive_records_is_rejected() -> None:
    chain = ['{"type":"record","name":"R0","fields":[]}']
    for i in range(1, 1000):
        fields = f'[{{"name":"a","type":"R{i - 1}"}}]'
        chain.append(f'{{"type":"record","name":"R{i}","fields":{fields}}}')
    texts = {f"R{i}": text for i, text in enumerate(chain)}
    content = Content(AVRO, '{"type":"array","items":"R999"}')
    old = Attack(AVRO, '"int"', content.text).registered()
    compared = CheckTask(content, texts, Level.FULL, False, ((old, texts),))
    assert AvroSchema(content.text, texts.values()).canonical
    result = run(compared)
    assert isinstance(result, Rejected)
    assert "nested too deep" in result.message
