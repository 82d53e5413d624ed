"""The server side of SCRAM: RFC examples, another client, and attacks."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.sasl.scram import ScramClient

from kbroker.security.errors import AuthenticationError
from kbroker.security.scram import (
    MESSAGE_BYTES_MAX,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    ScramUser,
    credential_from,
    credential_of,
    salted_password,
)

SHA_256 = ScramMechanism.SHA_256
SECRET = b"of this server"
PENCIL = {mechanism: credential_of(mechanism, "pencil") for mechanism in ScramMechanism}


def find(user: ScramUser) -> ScramCredential | None:
    return PENCIL[SHA_256] if user.name == "alice" else None


def server(mechanism: ScramMechanism = SHA_256) -> ScramServer:
    return ScramServer(
        mechanism,
        lambda user: PENCIL[mechanism] if user.name == "alice" else None,
        SECRET,
    )


def first_of(one: ScramServer, message: bytes = b"n,,n=alice,r=abc") -> dict[str, str]:
    """Return the attributes of the server's first message."""
    return dict(part.split("=", 1) for part in one.answer(message).decode().split(","))


def log_in(
    one: ScramServer, user: str, password: str, mechanism: ScramMechanism = SHA_256
) -> bytes:
    """Authenticate with kafka-python's client and return the server's last message."""
    client = ScramClient(user, password, mechanism)
    client.process_server_first_message(one.answer(client.first_message()))
    response = one.answer(client.final_message())
    client.process_server_final_message(response)
    return response


def test_server_matches_rfc_7677_example() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = salted_password(SHA_256, "pencil", salt, 4096)
    known = credential_from(SHA_256, salted, salt, 4096)
    nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    one = ScramServer(SHA_256, lambda _: known, SECRET, lambda: nonce)
    assert one.answer(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert one.user is None
    response = one.answer(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert response == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert one.user == ScramUser("user")


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_kafka_python_client_authenticates(mechanism: ScramMechanism) -> None:
    one = server(mechanism)
    log_in(one, "alice", "pencil", mechanism)
    assert one.user == ScramUser("alice")


@pytest.mark.parametrize(("user", "password"), [("alice", "pen"), ("mallory", "pencil")])
def test_wrong_password_and_unknown_user_give_same_error(user: str, password: str) -> None:
    one = server()
    with pytest.raises(AuthenticationError, match="the user or the password is wrong"):
        log_in(one, user, password)
    assert one.user is None


def test_unknown_user_gets_stable_salt() -> None:
    first, second = (first_of(server(), b"n,,n=mallory,r=x") for _ in range(2))
    assert first["s"] == second["s"]
    assert first["i"] == "4096"
    assert len(base64.b64decode(first["s"])) == len(PENCIL[SHA_256].salt)
    assert first_of(server(), b"n,,n=trudy,r=x")["s"] != first["s"]


def test_server_nonces_are_unique() -> None:
    assert len({first_of(server())["r"] for _ in range(100)}) == 100


def test_tokenauth_extension_marks_token() -> None:
    looked_up: list[ScramUser] = []
    one = ScramServer(SHA_256, looked_up.append, SECRET)
    one.answer(b"n,,n=token-1,r=x,tokenauth=true")
    assert looked_up == [ScramUser("token-1", is_token=True)]


def test_escaped_names_are_decoded() -> None:
    looked_up: list[ScramUser] = []
    ScramServer(SHA_256, looked_up.append, SECRET).answer(b"n,a=a=2Cb=3D,n=a=2Cb=3D,r=x")
    assert looked_up == [ScramUser("a,b=")]


def final_for(one: ScramServer, **changed: str) -> bytes:
    """Return alice's correct final message with the given changes."""
    client = ScramClient("alice", "pencil", SHA_256)
    client.process_server_first_message(one.answer(client.first_message()))
    parts = dict(part.split("=", 1) for part in client.final_message().decode().split(","))
    return ",".join(f"{name}={value}" for name, value in (parts | changed).items()).encode()


def test_correct_final_message_authenticates() -> None:
    one = server()
    one.answer(final_for(one))
    assert one.user == ScramUser("alice")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"r": "abc"}, "belongs to another exchange"),  # CVE-2024-56128
        ({"c": "eSws"}, "differs from the first"),  # "y,,": a downgrade
        ({"c": "!"}, "invalid base64"),
        ({"p": "!"}, "invalid base64"),
        ({"p": "AAAA"}, "is wrong"),
        ({"p": base64.b64encode(bytes(32)).decode()}, "is wrong"),
    ],
)
def test_altered_final_message_is_rejected(changed: dict[str, str], message: str) -> None:
    one = server()
    with pytest.raises(AuthenticationError, match=message):
        one.answer(final_for(one, **changed))
    assert one.user is None


def test_duplicated_client_nonce_is_rejected() -> None:
    """librdkafka before 2.6.1 sends it; Apache Kafka 4 rejects it as well."""
    one = server()
    first = first_of(one, b"n,,n=alice,r=abc")
    final = f"c=biws,r=abc{first['r']},p=AAAA".encode()
    with pytest.raises(AuthenticationError, match="client nonce twice, a bug of librdkafka before"):
        one.answer(final)
    assert one.user is None


def test_replayed_exchange_is_rejected() -> None:
    first = server()
    final = final_for(first)
    first.answer(final)
    second = server()
    second.answer(b"n,,n=alice,r=abc")
    with pytest.raises(AuthenticationError, match="another exchange"):
        second.answer(final)


def test_message_after_authentication_is_rejected() -> None:
    one = server()
    final = final_for(one)
    one.answer(final)
    with pytest.raises(AuthenticationError, match="unexpected message"):
        one.answer(final)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,m=1,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=al=ice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=alice,r=abc\x00",
        b"\xff",
        b"n,,n=alice,r=" + b"a" * MESSAGE_BYTES_MAX,
        b"n,,n=alice,r=abc,x",
    ],
)
def test_malformed_first_message_is_rejected(message: bytes) -> None:
    with pytest.raises(AuthenticationError):
        server().answer(message)


@given(st.lists(st.binary(max_size=200), max_size=3))
def test_arbitrary_bytes_raise_only_authentication_error(messages: list[bytes]) -> None:
    one = server()
    for message in messages:
        with pytest.raises(AuthenticationError):
            one.answer(message)


@pytest.mark.slow
def test_mutated_messages_never_authenticate() -> None:
    chance = random.Random(7)
    for _ in range(500):
        one = server()
        final = bytearray(final_for(one))
        at = chance.randrange(len(final))
        final[at] ^= 1 << chance.randrange(8)
        with pytest.raises(AuthenticationError):
            one.answer(bytes(final))
        assert one.user is None
