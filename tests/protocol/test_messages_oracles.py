"""Every message in every version, compared with two foreign codecs.

For each pair of API key, version and direction that an oracle supports:
* kbroker's encoding of a random message, decoded and encoded by the oracle, has the same bytes, and
  the oracle decoded the same values under the same names.
* The same holds with an unknown tagged field in every struct, which both sides skip.
* A random message created by the oracle, decoded and encoded by kbroker, has the same bytes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import _Encoder, decode, encode_bytes
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.protocol.schema import Field, Int16, Int32, Int64, Message, message, wire

from .oracles import NEW_IN_4_4, KafkaPython, Kio, Oracle, with_present_names
from .samples import Pair, Style, declared, declared_pairs, plain, sample

SEED = 1
ROUNDS = (*Style, Style.MIXED, Style.MIXED)
FOREIGN_ROUNDS = 6

# A tagged field that is in no schema. Its value is an attribute that every object has.
UNKNOWN_TAG = Field("__module__", "string", False, False, 0, 99, 0, 4711, "")


class NoisyEncoder(_Encoder):
    """Writes an unknown tagged field into every struct of a flexible version."""

    def tags(self, tagged: list[Field], this: str) -> None:
        super().tags([*tagged, UNKNOWN_TAG], this)


class HalfNoisyEncoder(_Encoder):
    """Skips structs that are tagged fields, because kafka-python rejects unknown tags in them."""

    def tags(self, tagged: list[Field], this: str) -> None:
        super().tags([*tagged, UNKNOWN_TAG] if self.out == "out" else tagged, this)


def encode_with(encoder: type[_Encoder], value: Message, version: int) -> bytes:
    parts = [bytearray()]
    encoder(type(value), version).function()(value, parts[0], parts)
    return b"".join(parts)


def differences(oracle: Oracle, cls: type[Message], pair: Pair) -> Iterator[str]:
    """Compare one pair and yield one line per difference."""
    key, version, kind = pair
    label = f"{oracle.name} {ApiKey(key).api_name} {kind} {version}"
    rng = random.Random(f"{SEED} {pair}")
    for style in ROUNDS:
        try:
            yield from _compare_ours(oracle, cls, pair, rng, style)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a difference
            yield f"{label} {style.name}: {error!r}"
    for _ in range(FOREIGN_ROUNDS):
        try:
            data = oracle.write(pair, oracle.make(pair, rng))
            value, end = decode(cls, data, version)
            if end != len(data) or encode_bytes(value, version) != data:
                yield f"{label}: its bytes differ from ours"
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a difference
            yield f"{label}: its message: {error!r}"


def _compare_ours(
    oracle: Oracle, cls: type[Message], pair: Pair, rng: random.Random, style: Style
) -> Iterator[str]:
    label = f"{oracle.name} {pair} {style.name}"
    _, version, _ = pair
    ours = sample(cls, version, rng, style)
    data = encode_bytes(ours, version)
    if decode(cls, data, version) != (ours, len(data)):
        yield f"{label}: does not survive our own decode"
    theirs = oracle.read(pair, data)
    if oracle.write(pair, theirs) != data:
        yield f"{label}: our bytes differ from its"
    found = with_present_names(pair[0], oracle.plain(pair, theirs))
    if canonical(found) != canonical(plain(ours, version)):
        yield f"{label}: it found other values"
    if not cls.is_flexible(version):
        return
    noisy = encode_with(NoisyEncoder, ours, version)
    if decode(cls, noisy, version) != (ours, len(noisy)):
        yield f"{label}: unknown tags change our decode"
    noisy = encode_with(HalfNoisyEncoder, ours, version)
    if oracle.skips_unknown_tags and oracle.write(pair, oracle.read(pair, noisy)) != data:
        yield f"{label}: unknown tags change its decode"


def canonical(value: Any) -> Any:
    """Return a value without unset structs, which oracles represent differently."""
    if isinstance(value, list):
        return [canonical(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: canonical(item) for name, item in value.items() if not _is_unset(item)}


def _is_unset(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(v == -1 for v in value.values()))


@pytest.fixture(scope="module", params=[Kio, KafkaPython], ids=lambda cls: cls.name)
def oracle(request: pytest.FixtureRequest) -> Oracle:
    made: Oracle = request.param()
    return made


@pytest.mark.slow
def test_encoded_bytes_equal_those_of_the_oracle(
    oracle: Oracle, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    ours = set(declared_pairs())
    compared = sorted(ours & oracle.pairs())
    found = [line for pair in compared for line in differences(oracle, declared(pair), pair)]
    seconds = time.monotonic() - started
    with capsys.disabled():
        print(f"\n{oracle.name}: {len(compared)} pairs compared in {seconds:.1f} s")
    assert not found, "\n".join(found[:40])


def test_all_messages_of_kio_are_declared() -> None:
    assert Kio().pairs() - set(declared_pairs()) == set()


def test_all_versions_that_kafka_advertises_are_declared() -> None:
    advertised = {
        (key, version, kind)
        for key, (first, last) in KafkaPython().advertised.items()
        for version in range(first, last + 1)
        for kind in ("request", "response")
    }
    assert advertised - set(declared_pairs()) == set()


def test_every_declared_pair_has_an_oracle() -> None:
    assert set(declared_pairs()) - Kio().pairs() - KafkaPython().pairs() == NEW_IN_4_4


@message(key=12, versions="0-4", flexible="4+")
class FieldTooEarly:
    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: str | None = wire(since=2)


@message(key=12, versions="0-4", flexible="4+")
class NullForbidden:
    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: str = wire(since=3)


@message(key=12, versions="0-4", flexible="3+")
class FlexibleTooEarly:
    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: str | None = wire(since=3)


@message(key=12, versions="0-4", flexible="4+")
class NamesSwapped:
    member_id: str = ""
    generation_id: Int32 = 0
    group_id: str = ""
    group_instance_id: str | None = wire(since=3)


@message(key=18, versions="0-4", flexible="3+")
class WrongTaggedDefault:
    error_code: Int16 = 0
    api_keys: list[ApiVersionsResponse.ApiVersion] = wire()
    throttle_time_ms: Int32 = wire(since=1)
    supported_features: list[ApiVersionsResponse.SupportedFeature] = wire(since=3, tag=0)
    finalized_features_epoch: Int64 = wire(since=3, tag=1)
    finalized_features: list[ApiVersionsResponse.FinalizedFeature] = wire(since=3, tag=2)
    zk_migration_ready: bool = wire(since=3, tag=3)


@pytest.mark.parametrize(
    ("planted", "kind", "wrong_versions"),
    [
        (FieldTooEarly, "request", {2}),
        (NullForbidden, "request", {3, 4}),
        (FlexibleTooEarly, "request", {3}),
        (NamesSwapped, "request", {0, 1, 2, 3, 4}),
        (WrongTaggedDefault, "response", {3, 4}),
    ],
)
def test_planted_bug_is_reported(
    oracle: Oracle, planted: Any, kind: str, wrong_versions: set[int]
) -> None:
    reported = {
        version
        for version in planted.VERSIONS
        if list(differences(oracle, planted, (planted.KEY, version, kind)))
    }
    assert reported == wrong_versions
