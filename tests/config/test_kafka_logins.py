"""Users in compose files: JAAS files, Bitnami's variables, and PLAIN without TLS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.broker import open_broker
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.errors import CannotConnect
from kbroker.config import BrokerConfig, ConfigError, read_kafka_environment
from kbroker.config.kafka_logins import client_login
from kbroker.process.listeners import configured_listeners
from kbroker.security.jaas import BadJaas, LoginModule, jaas_text, parse_login_file, parse_modules

from ..cli.test_serve import serving

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LOGIN_FILE = f"""
// Of a compose file.
KafkaServer {{
  {PLAIN_MODULE} required
    username="broker" password="own;secret{{}}"
    user_broker="own;secret{{}}"
    user_alice="pencil";
  {SCRAM_MODULE} required user_alice="pencil";
}};
out.KafkaServer {{ {PLAIN_MODULE} required user_bob="brush"; }};
KafkaClient {{ {PLAIN_MODULE} required username="alice" password="pencil"; }};
Client {{ org.apache.zookeeper.server.auth.DigestLoginModule required username="z" password="z"; }};
"""
LISTENERS = {
    "KAFKA_LISTENERS": "IN://127.0.0.1:0,OUT://127.0.0.1:0",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "IN:SASL_PLAINTEXT,OUT:SASL_PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "IN",
}
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=20)
MODULES = st.lists(
    st.builds(
        LoginModule,
        st.sampled_from((PLAIN_MODULE, SCRAM_MODULE, "A")),
        st.dictionaries(NAMES, NAMES, max_size=4),
    ),
    min_size=1,
    max_size=3,
)


def config_of(environ: Mapping[str, str]) -> BrokerConfig:
    found = read_kafka_environment({**LISTENERS, **environ})
    return BrokerConfig.load(kafka_values=found.values)


async def logins(config: BrokerConfig, users: Mapping[str, str]) -> set[tuple[str, str, str]]:
    """Return the users that can authenticate, with listener and mechanism."""
    found = set()
    listeners = configured_listeners(config)
    async with open_broker(config, data_dir=None, listeners=listeners) as broker:
        for listener, endpoint in broker.server.endpoints():
            for mechanism in MECHANISMS:
                for name, password in users.items():
                    security = Security(None, Credentials(mechanism, name, password))
                    async with open_cluster([endpoint], security=security) as cluster:
                        try:
                            await cluster.metadata([])
                        except CannotConnect:
                            continue
                    found.add((listener.name, mechanism, name))
    return found


@pytest.fixture
def login_file(tmp_path: Path) -> Path:
    path = tmp_path / "kafka_server_jaas.conf"
    path.write_text(LOGIN_FILE)
    return path


async def test_users_of_jaas_file_can_authenticate(login_file: Path) -> None:
    config = config_of(
        {
            "KAFKA_OPTS": f"-Xmx1g -Djava.security.auth.login.config={login_file} -Da=b",
            "KAFKA_SASL_ENABLED_MECHANISMS": "PLAIN,SCRAM-SHA-512",
            "KAFKA_CONNECTION_FAILED_AUTHENTICATION_DELAY_MS": "0",
        }
    )
    users = {"broker": "own;secret{}", "alice": "pencil", "bob": "brush", "mallory": "pencil"}
    assert await logins(config, users) == {
        ("IN", "PLAIN", "broker"),
        ("IN", "PLAIN", "alice"),
        ("IN", "SCRAM-SHA-512", "alice"),
        ("OUT", "PLAIN", "bob"),
        ("OUT", "SCRAM-SHA-512", "alice"),
    }


async def test_users_of_bitnami_variables_can_authenticate() -> None:
    environ = {
        "KAFKA_CLIENT_USERS": "alice,bob",
        "KAFKA_CLIENT_PASSWORDS": "pencil;brush",
        "KAFKA_INTER_BROKER_USER": "node",
        "KAFKA_INTER_BROKER_PASSWORD": "hush",
        "KAFKA_CONNECTION_FAILED_AUTHENTICATION_DELAY_MS": "0",
    }
    users = {"alice": "pencil", "bob": "brush", "node": "hush"}
    everywhere = {(a, b, c) for a in ("IN", "OUT") for b in MECHANISMS for c in users}
    assert await logins(config_of(environ), users) == everywhere
    narrow = config_of({**environ, "KAFKA_CFG_SASL_ENABLED_MECHANISMS": "PLAIN"})
    assert await logins(narrow, users) == {row for row in everywhere if row[1] == "PLAIN"}


async def test_brokers_authenticate_to_each_other_with_jaas_file(login_file: Path) -> None:
    config = config_of(
        {
            "KAFKA_OPTS": f"-Djava.security.auth.login.config={login_file}",
            "KAFKA_SASL_ENABLED_MECHANISMS": "PLAIN",
            "KAFKA_SASL_MECHANISM_INTER_BROKER_PROTOCOL": "PLAIN",
        }
    )
    (inside, _) = configured_listeners(config)
    assert inside.security is not None
    assert inside.security.credentials() == Credentials("PLAIN", "broker", "own;secret{}")


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        (
            {"KAFKA_CLIENT_USERS": "a,b", "KAFKA_CLIENT_PASSWORDS": "c"},
            "has 2 names, but .* has 1;",
        ),
        (
            {"KAFKA_OPTS": "-Djava.security.auth.login.config=/no/such/file"},
            "KAFKA_OPTS: cannot read /no/such/file: No such file",
        ),
    ],
)
def test_invalid_user_variables_are_rejected(environ: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        config_of(environ)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(("KafkaServer", "a.KafkaServer", "Client")), MODULES))
@settings(max_examples=60)
def test_jaas_file_parser_restores_written_modules(sections: dict[str, list[LoginModule]]) -> None:
    text = "\n".join(
        f"{name} {{ {' '.join(jaas_text(*each) for each in modules)} }};"
        for name, modules in sections.items()
    )
    assert parse_login_file(text) == sections
    for modules in sections.values():
        assert parse_modules(" ".join(jaas_text(*each) for each in modules)) == modules


@pytest.mark.parametrize(
    "text",
    [
        "KafkaServer",
        "KafkaServer { A required; }",
        "{ A required; };",
        "K { A; };",
        "K { A required };",
    ],
)
def test_invalid_jaas_file_is_rejected(text: str) -> None:
    with pytest.raises(BadJaas):
        parse_login_file(text)


def test_client_section_of_jaas_file_is_read_for_tools(login_file: Path) -> None:
    login = client_login(f"-Djava.security.auth.login.config={login_file}")
    assert parse_modules(login)[0].options == {"username": "alice", "password": "pencil"}
    assert client_login("-Xmx1g") == ""


def test_plain_without_tls_requires_setting() -> None:
    exposed = {
        "KAFKA_LISTENERS": "IN://0.0.0.0:0",
        "KAFKA_CLIENT_USERS": "alice",
        "KAFKA_CLIENT_PASSWORDS": "pencil",
    }
    with pytest.raises(ConfigError, match=r"or set sasl\.plain\.over\.plaintext\.enable=true"):
        configured_listeners(config_of(exposed))
    allowed = {**exposed, "KAFKA_SASL_PLAIN_OVER_PLAINTEXT_ENABLE": "true"}
    (listener,) = configured_listeners(config_of(allowed))
    assert listener.users is not None
    assert listener.users.mechanisms == MECHANISMS


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("has_users", [True, False])
async def test_listener_security_detects_missing_users(mechanism: str, has_users: bool) -> None:
    users = {"KAFKA_CLIENT_USERS": "alice", "KAFKA_CLIENT_PASSWORDS": "pencil"} if has_users else {}
    config = config_of({**users, "KAFKA_CFG_SASL_ENABLED_MECHANISMS": mechanism})
    listeners = configured_listeners(config)
    async with open_broker(config, data_dir=None, listeners=listeners) as broker:
        for listener in broker.nodes[0].listeners:
            assert listener.security is not None
            assert listener.security.lacks_users is not has_users


@pytest.mark.slow
def test_server_warns_of_listener_without_users() -> None:
    options = ("listeners=SASL_PLAINTEXT://localhost:0", "sasl.enabled.mechanisms=SCRAM-SHA-256")
    arguments = [word for option in options for word in ("-o", option)]
    with serving("--memory", *arguments) as process:
        assert process.stderr is not None
        warning = next(line for line in process.stderr if "no users" in line)
    assert "clients cannot authenticate at SASL_PLAINTEXT://localhost:" in warning
    assert "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config" in warning
