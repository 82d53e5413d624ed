"""Security of a broker under test: TLS, authentication and ACLs."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypedDict

from kbroker.config import BrokerConfig
from kbroker.net.server import Listener
from kbroker.node.listener_security import ListenerSecurity
from kbroker.security.acls import (
    CLUSTER,
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
)
from kbroker.security.jaas import jaas_text
from kbroker.security.principals import ANONYMOUS, USER, Principal
from kbroker.security.protocols import SecurityProtocol
from kbroker.security.scram import ScramMechanism
from kbroker.security.users import OAUTHBEARER, PLAIN

from .arguments import parse_choice
from .client_settings import AnyLogin, ClientSettings, Login, TokenLogin, protocol_of
from .credentials import BY_COMMON_NAME, Certificates, Issuer, check_names
from .names import suggest_similar

# Passwords by user name.
Passwords = Mapping[str, str]
# Permissions by user: `{"alice": ["READ topic orders", "WRITE topic invoices-*"]}`.
Permissions = Mapping[str, Iterable[str]]

# SASL mechanisms with a password. Clients use the first one unless a test selects another.
MECHANISMS: Final = (ScramMechanism.SHA_512, ScramMechanism.SHA_256, PLAIN)
HOST = "localhost"
# User name with which the nodes authenticate to each other. It is also the common name of the
# broker's certificate.
NODE_USER = "kbroker-node"
_RESERVED_NAME = f"{NODE_USER} is the user name of the broker's nodes; choose another name"
EVERYBODY = "*"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OPERATIONS = tuple(each.name for each in AclOperation if each > AclOperation.ANY)
RESOURCES = ("topic", "group", "cluster", "transactional_id")
# Examples of permissions, for error messages.
PERMISSION_EXAMPLES = (
    '"READ topic orders", "WRITE topic invoices-*", "DENY READ topic orders", "CREATE cluster"'
)


class SecurityOptions(TypedDict, total=False):
    """Security options of a broker under test; see `LocalBroker`."""

    tls: bool
    users: Passwords | None
    tokens: Iterable[str]
    certificates: Iterable[str]
    acls: Permissions | None
    super_users: Iterable[str]


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """Security of the listener of a broker under test.

    Attributes:
        certificates: Certificates of the broker and its clients; None without TLS.
        users: Passwords of the users that authenticate with SCRAM or PLAIN.
        issuer: Issuer of tokens; None without OAUTHBEARER.
        token_users: Users that authenticate with a token.
        has_acls: True if ACLs are enforced.
        super_users: Users that ACLs do not restrict.
        node_password: Password with which the nodes authenticate to each other.
        has_custom_listeners: True if the caller has created the listeners. Their security is then
            unknown.
    """

    certificates: Certificates | None
    users: Passwords = field(repr=False)
    issuer: Issuer | None
    token_users: tuple[str, ...]
    has_acls: bool
    super_users: tuple[str, ...]
    node_password: str = field(repr=False)
    has_custom_listeners: bool = False

    @property
    def protocol(self) -> SecurityProtocol:
        """Security protocol of the listener, which is also the name of the listener."""
        return protocol_of(tls=self.certificates is not None, has_login=self._has_login)

    @property
    def _has_login(self) -> bool:
        return bool(self.users) or self.issuer is not None

    @property
    def valid_users(self) -> list[str]:
        """User names that permissions may name; only ANONYMOUS if clients do not authenticate."""
        certificate_users = [] if self.certificates is None else [*self.certificates.clients]
        found = dict.fromkeys([*self.users, *self.token_users, *certificate_users])
        return [*found] or [ANONYMOUS.name]

    def properties(self) -> dict[str, str]:
        """Return the broker properties that configure the security."""
        return self._tls_properties() | self._sasl_properties() | self._acl_properties()

    def _tls_properties(self) -> dict[str, str]:
        if self.certificates is None:
            return {}
        found = {
            "ssl.keystore.certificate.chain": self.certificates.own.chain,
            "ssl.keystore.key": self.certificates.own.key,
            "ssl.truststore.certificates": self.certificates.authority,
        }
        if self.certificates.clients:
            found |= {
                "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": BY_COMMON_NAME,
            }
        return found

    def _sasl_properties(self) -> dict[str, str]:
        if not self._has_login:
            return {}
        # Nodes authenticate with PLAIN, even if no user does.
        own = {
            "username": NODE_USER,
            "password": self.node_password,
            f"user_{NODE_USER}": self.node_password,
        }
        users = {f"user_{name}": password for name, password in self.users.items()}
        modules = {PLAIN: jaas_text("PlainLoginModule", users | own)}
        if self.users:
            for each in (ScramMechanism.SHA_512, ScramMechanism.SHA_256):
                modules[each] = jaas_text("ScramLoginModule", users)
        found = {"sasl.mechanism.inter.broker.protocol": PLAIN}
        if self.issuer is not None:
            modules[OAUTHBEARER] = jaas_text("OAuthBearerLoginModule", {})
            found |= self.issuer.properties()
        found["sasl.enabled.mechanisms"] = ",".join(modules)
        prefix = f"listener.name.{self.protocol.lower()}"
        for mechanism, text in modules.items():
            found[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = text
        return found

    def _acl_properties(self) -> dict[str, str]:
        if not self.has_acls:
            return {}
        supers = [*self.super_users, *([] if self.valid_users == [ANONYMOUS.name] else [NODE_USER])]
        return {
            "authorizer.class.name": AUTHORIZER,
            "super.users": ";".join(str(Principal(USER, name)) for name in supers),
        }

    def listener(self, config: BrokerConfig) -> Listener:
        """Return a listener on a free port for a broker with these settings.

        Raises:
            ConfigError: The security settings are invalid.
        """
        protocol = self.protocol
        is_open = protocol == SecurityProtocol.PLAINTEXT
        security = (
            None if is_open else ListenerSecurity(protocol, protocol, config, is_exposed=False)
        )
        return Listener(protocol, HOST, 0, security=security)

    def settings(
        self,
        bootstrap: str,
        user: str | None,
        password: str | None,
        mechanism: str | None,
        token: str | None,
    ) -> ClientSettings:
        """Return the settings of a client; see `ClientAccess.client`.

        Raises:
            ValueError: The user does not exist, or the caller has created the listeners.
        """
        if self.has_custom_listeners:
            raise ValueError(
                "the security of this broker's listeners is unknown, because they were passed as "
                "an argument; configure the client yourself"
            )
        authority = None if self.certificates is None else self.certificates.authority
        client_certificates = {} if self.certificates is None else self.certificates.clients
        if not (self._has_login or client_certificates):
            if user is not None:
                raise ValueError(
                    f"clients of this broker do not authenticate; create it with "
                    f'users={{"{user}": ...}}'
                )
            return ClientSettings(bootstrap, authority)
        if user is None:
            user = self.valid_users[0]
        if client_certificates:
            if user not in client_certificates:
                raise self._unknown_user(user, "certificates")
            return ClientSettings(bootstrap, authority, certificate=client_certificates[user])
        login = self._new_login(user, password, mechanism, token)
        return ClientSettings(bootstrap, authority, login)

    def _new_login(
        self, user: str, password: str | None, mechanism: str | None, token: str | None
    ) -> AnyLogin:
        by_token = mechanism is None and password is None and user in self.token_users
        if token is not None or (by_token and user not in self.users):
            mechanism = OAUTHBEARER
        supported = [*(MECHANISMS if self.users else ()), *([OAUTHBEARER] if self.issuer else [])]
        selected = str(parse_choice("mechanism", mechanism or supported[0], supported))
        if selected == OAUTHBEARER and self.issuer is not None:
            if token is None and user not in self.token_users:
                raise self._unknown_user(user, "tokens")
            new_token = partial(self.issuer.token, user)
            provider = new_token if token is None else partial(str, token)
            return TokenLogin(user, provider, self.issuer.file_of(provider()))
        if password is None:
            password = self.users.get(user)
        if password is None:
            raise self._unknown_user(user, "users")
        return Login(user, password, selected)

    def _unknown_user(self, user: str, where: str) -> ValueError:
        other = {"users": "a password", "tokens": "a token"}.get(where)
        hint = f", or pass {other} to test a failed authentication" if other else ""
        return ValueError(
            _unknown_user_text(user, self.valid_users, f"add the user to {where}{hint}")
        )

    def token(self, user: str, claims: Mapping[str, object]) -> str:
        """Return a token of this broker's issuer.

        Raises:
            ValueError: The broker does not accept tokens.
        """
        if self.issuer is None:
            raise ValueError(
                f'this broker does not accept tokens; create it with tokens=["{user}"]'
            )
        return self.issuer.token(user, **claims)

    def additional_acls_of(self, rights: Permissions) -> list[Acl]:
        """Return the ACLs of permissions that a test adds to a running broker.

        Raises:
            ValueError: ACLs are not enforced, or a permission is invalid.
        """
        if not self.has_acls:
            raise ValueError("ACLs are not enforced; create the broker with acls={}")
        return self.acls_of(rights)

    def acls_of(self, rights: Permissions) -> list[Acl]:
        """Return the ACLs of some permissions.

        Raises:
            ValueError: A permission is malformed, or a user does not exist.
        """
        return [
            parse_acl(name, text)
            for name, texts in rights.items()
            for text in self._permissions_of(name, texts)
        ]

    def _permissions_of(self, name: str, texts: Iterable[str]) -> list[str]:
        valid_users = [*self.valid_users, EVERYBODY]
        if name not in valid_users:
            raise ValueError(
                f"acls: there is no user {name!r}{suggest_similar(name, valid_users)} "
                f"(valid: {', '.join(valid_users)})"
            )
        return list(texts)


# Security of a broker without TLS, authentication and ACLs.
UNSECURED = BrokerSecurity(None, {}, None, (), has_acls=False, super_users=(), node_password="")


class ClientAccess:
    """Credentials and settings for the clients of a broker under test."""

    _secured: BrokerSecurity

    @property
    def bootstrap_servers(self) -> str:
        """Value of the clients' `bootstrap.servers`: HOST:PORT, with commas between several."""
        raise NotImplementedError

    def client(
        self,
        user: str | None = None,
        *,
        password: str | None = None,
        mechanism: str | None = None,
        token: str | None = None,
    ) -> ClientSettings:
        """Return the settings of a client for each library: `client("alice").kafka_python`.

        Args:
            user: User to authenticate as; None for the first one.
            password: Password instead of the user's own, to test a failed authentication.
            mechanism: SCRAM-SHA-512 (default), SCRAM-SHA-256, PLAIN or OAUTHBEARER. Users without a
                password use OAUTHBEARER.
            token: Token instead of a valid one, to test a failed authentication.

        Returns:
            The settings of the client.

        Raises:
            ValueError: The user does not exist, or the broker does not support the mechanism.
        """
        return self._secured.settings(self.bootstrap_servers, user, password, mechanism, token)

    def token(self, user: str, /, **claims: object) -> str:
        """Return a token that the broker accepts for one hour.

        Args:
            user: User name, the claim `sub`.
            claims: Claims to replace, for example `exp=0` for an expired token; None removes a
                claim.

        Returns:
            A signed JSON web token.

        Raises:
            ValueError: The broker does not accept tokens.
        """
        return self._secured.token(user, claims)


def new_broker_security(
    *,
    nodes: int,
    tls: bool = False,
    users: Passwords | None = None,
    tokens: Iterable[str] = (),
    certificates: Iterable[str] = (),
    acls: Permissions | None = None,
    super_users: Iterable[str] = (),
) -> BrokerSecurity:
    """Create the security of a broker from the options of `LocalBroker`.

    Args:
        nodes: Number of nodes.
        tls: Use TLS.
        users: Passwords by user name.
        tokens: Users that authenticate with a token.
        certificates: Users that authenticate with a client certificate.
        acls: Permissions by user; None disables ACLs.
        super_users: Users that ACLs do not restrict.

    Raises:
        ValueError: The options are invalid or contradict each other.
    """
    secured = BrokerSecurity(
        None,
        _check_users(users),
        None,
        tuple(_check_names("tokens", tokens)),
        acls is not None,
        tuple([super_users] if isinstance(super_users, str) else super_users),
        secrets.token_urlsafe(),
    )
    certificate_users = _check_names("certificates", certificates)
    if certificate_users and (secured.users or secured.token_users):
        raise ValueError(
            "clients authenticate with certificates or with SASL, not both; leave out "
            "certificates, or users and tokens"
        )
    if secured.super_users and acls is None:
        raise ValueError("super_users without ACLs have no effect; add acls={}")
    valid_users = [*secured.users, *secured.token_users, *certificate_users]
    for name in secured.super_users:
        if name not in valid_users:
            action = "add the user to users, with a password"
            raise ValueError(f"super_users: {_unknown_user_text(name, valid_users, action)}")
    if acls is not None and nodes > 1 and not valid_users:
        raise ValueError(
            "acls with several nodes: the nodes must authenticate; add users, or leave out nodes"
        )
    return replace(
        secured,
        certificates=Certificates.new(NODE_USER, certificate_users)
        if tls or certificate_users
        else None,
        issuer=Issuer() if secured.token_users else None,
    )


def _unknown_user_text(name: str, known: list[str], action: str) -> str:
    """Return the message for an unknown user, with a similar name and the action to create the user."""
    similar = suggest_similar(name, known)
    separator = " Otherwise, " if similar else "; "
    return f"there is no user {name!r}{similar}{separator}{action}"


def _check_names(option: str, names: Iterable[str]) -> list[str]:
    found = check_names(option, names)
    if NODE_USER in found:
        raise ValueError(_RESERVED_NAME)
    return found


def _check_users(users: Passwords | None) -> dict[str, str]:
    if users is None:
        return {}
    if not isinstance(users, Mapping) or not users:
        raise ValueError(
            f'invalid users {users!r}: pass passwords by name, as {{"alice": "secret"}}'
        )
    for name, password in users.items():
        if not (isinstance(name, str) and name and isinstance(password, str) and password):
            raise ValueError("users: names and passwords must be non-empty strings")
    if NODE_USER in users:
        raise ValueError(_RESERVED_NAME)
    return dict(users)


def merge_properties(config: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Merge the properties of a test with those of its security options.

    Raises:
        ValueError: A property is in both.
    """
    twice = sorted(config.keys() & own.keys())
    if twice:
        raise ValueError(
            f"tls, users and acls set {twice[0]}; leave it out of config, or leave them out and "
            "pass listeners"
        )
    return {**config, **own}


def parse_acl(name: str, text: str) -> Acl:
    """Return the ACL of a permission, for example "READ topic orders".

    Args:
        name: User name, or "*" for all users.
        text: Permission.

    Raises:
        ValueError: The permission is malformed.
    """
    words = text.split()
    permission = AclPermission.ALLOW
    if words and words[0].upper() in ("ALLOW", "DENY"):
        permission = AclPermission[words.pop(0).upper()]
    if len(words) == 2 and words[1].lower() == "cluster":
        words.append(CLUSTER.name)
    if len(words) != 3:
        raise ValueError(f"acls: invalid permission {text!r}; write {PERMISSION_EXAMPLES}")
    operation, kind, resource = words
    return Acl(
        _pattern(parse_choice("resource type in acls", kind, RESOURCES), resource),
        str(Principal(USER, name)),
        EVERYBODY,
        AclOperation[parse_choice("operation in acls", operation, OPERATIONS)],
        permission,
    )


def _pattern(kind: str, name: str) -> Pattern:
    resource_type = AclResourceType[kind.upper()]
    if name != EVERYBODY and name.endswith("*"):
        return Pattern(resource_type, PatternType.PREFIXED, name[:-1])
    return Pattern(resource_type, PatternType.LITERAL, name)
