"""A broker under test that does not trust everybody: TLS, logins and ACLs in the words of a test."""

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

from .client_settings import AnyLogin, ClientSettings, Login, TokenLogin, protocol_of
from .credentials import BY_COMMON_NAME, Certificates, Issuer, check_names
from .given import one_of
from .names import close

Passwords = Mapping[str, str]
"""Passwords by name."""
Permissions = Mapping[str, Iterable[str]]
"""What users may do: `{"alice": ["READ topic orders", "WRITE topic invoices-*"]}`."""

MECHANISMS: Final = (ScramMechanism.SHA_512, ScramMechanism.SHA_256, PLAIN)
"""Those by which users log in with a password; the first one unless a test asks for another."""
HOST = "localhost"
NODE_USER = "kbroker-node"
"""As whom nodes log in at each other, and whose name the broker's certificate has."""
_RESERVED_NAME = f"{NODE_USER} is the name of the broker's own nodes; call that user otherwise"
EVERYBODY = "*"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OPERATIONS = tuple(each.name for each in AclOperation if each > AclOperation.ANY)
RESOURCES = ("topic", "group", "cluster", "transactional_id")
FORM = '"READ topic orders", "WRITE topic invoices-*", "DENY READ topic orders", "CREATE cluster"'


class SecurityOptions(TypedDict, total=False):
    """Whom a broker under test trusts, in the words of a test; see `LocalBroker`."""

    tls: bool
    users: Passwords | None
    tokens: Iterable[str]
    certificates: Iterable[str]
    acls: Permissions | None
    super_users: Iterable[str]


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """What the one listener of a broker under test asks of its clients."""

    certificates: Certificates | None
    users: Passwords = field(repr=False)
    issuer: Issuer | None
    token_users: tuple[str, ...]
    has_acls: bool
    super_users: tuple[str, ...]
    node_password: str = field(repr=False)
    is_elsewhere: bool = False
    """Whether clients come in by listeners that somebody else has made."""

    @property
    def protocol(self) -> SecurityProtocol:
        """Of the listener, which is called like it."""
        return protocol_of(tls=self.certificates is not None, has_login=self._has_login)

    @property
    def _has_login(self) -> bool:
        return bool(self.users) or self.issuer is not None

    @property
    def known(self) -> list[str]:
        """Everybody whom there is; who is nobody in particular where there is nobody else."""
        shown = [] if self.certificates is None else [*self.certificates.clients]
        found = dict.fromkeys([*self.users, *self.token_users, *shown])
        return [*found] or [ANONYMOUS.name]

    def properties(self) -> dict[str, str]:
        """The properties of the broker that say so."""
        return self._tls() | self._logins() | self._access()

    def _tls(self) -> dict[str, str]:
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

    def _logins(self) -> dict[str, str]:
        if not self._has_login:
            return {}
        # Nodes log in by PLAIN, also where nobody else does.
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

    def _access(self) -> dict[str, str]:
        if not self.has_acls:
            return {}
        supers = [*self.super_users, *([] if self.known == [ANONYMOUS.name] else [NODE_USER])]
        return {
            "authorizer.class.name": AUTHORIZER,
            "super.users": ";".join(str(Principal(USER, name)) for name in supers),
        }

    def listener(self, config: BrokerConfig) -> Listener:
        """The listener, on a free port, of a broker with such a configuration. Raises ConfigError."""
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
        """Those of a client. Raises ValueError for a user whom there is not."""
        if self.is_elsewhere:
            raise ValueError(
                "this broker has the listeners that it was given: whoever gave them knows what they ask for"
            )
        authority = None if self.certificates is None else self.certificates.authority
        shown = {} if self.certificates is None else self.certificates.clients
        if not (self._has_login or shown):
            if user is not None:
                raise ValueError(
                    f'nobody logs in at this broker; make it with users={{"{user}": ...}}'
                )
            return ClientSettings(bootstrap, authority)
        if user is None:
            user = self.known[0]
        if shown:
            if user not in shown:
                raise self._unknown(user, "certificates")
            return ClientSettings(bootstrap, authority, certificate=shown[user])
        login = self._login(user, password, mechanism, token)
        return ClientSettings(bootstrap, authority, login)

    def _login(
        self, user: str, password: str | None, mechanism: str | None, token: str | None
    ) -> AnyLogin:
        by_token = mechanism is None and password is None and user in self.token_users
        if token is not None or (by_token and user not in self.users):
            mechanism = OAUTHBEARER
        known = [*(MECHANISMS if self.users else ()), *([OAUTHBEARER] if self.issuer else [])]
        by = str(one_of("mechanism", mechanism or known[0], known))
        if by == OAUTHBEARER and self.issuer is not None:
            if token is None and user not in self.token_users:
                raise self._unknown(user, "tokens")
            fresh = partial(self.issuer.token, user)
            given = fresh if token is None else partial(str, token)
            return TokenLogin(user, given, self.issuer.file_of(given()))
        if password is None:
            password = self.users.get(user)
        if password is None:
            raise self._unknown(user, "users")
        return Login(user, password, by)

    def _unknown(self, user: str, where: str) -> ValueError:
        other = {"users": "a password", "tokens": "a token"}.get(where)
        strange = f", or name {other} too, to see how a stranger is turned away" if other else ""
        return ValueError(
            f"there is no user {user!r}{close(user, self.known)}; add it to {where}{strange}"
        )

    def token(self, user: str, claims: Mapping[str, object]) -> str:
        """A token of this broker's issuer. Raises ValueError where nobody shows any."""
        if self.issuer is None:
            raise ValueError(f'nobody shows a token at this broker; make it with tokens=["{user}"]')
        return self.issuer.token(user, **claims)

    def more_rules(self, rights: Permissions) -> list[Acl]:
        """The same where ACLs rule. Raises ValueError where they do not."""
        if not self.has_acls:
            raise ValueError("everybody may do everything here; make the broker with acls={}")
        return self.rules(rights)

    def rules(self, rights: Permissions) -> list[Acl]:
        """ACLs as a test says them. Raises ValueError."""
        return [
            parse_acl(name, text)
            for name, texts in rights.items()
            for text in self._texts(name, texts)
        ]

    def _texts(self, name: str, texts: Iterable[str]) -> list[str]:
        known = [*self.known, EVERYBODY]
        if name not in known:
            raise ValueError(
                f"acls: {name!r} is nobody here{close(name, known)}; there are {', '.join(known)}"
            )
        return list(texts)


OPEN = BrokerSecurity(None, {}, None, (), has_acls=False, super_users=(), node_password="")
"""What lets everybody do everything."""


class Clients:
    """What the clients of a broker under test are given."""

    _secured: BrokerSecurity

    @property
    def bootstrap_servers(self) -> str:
        """What clients take as their bootstrap.servers."""
        raise NotImplementedError

    def client(
        self,
        user: str | None = None,
        *,
        password: str | None = None,
        mechanism: str | None = None,
        token: str | None = None,
    ) -> ClientSettings:
        """What a client needs to come in, for each library: `client("alice").kafka_python`.

        Parameters: `user` is who logs in, by default the first one; `password` is another than the
        user's own, to see a login fail, and `token` likewise; `mechanism` is SCRAM-SHA-512, unless it is
        SCRAM-SHA-256, PLAIN or OAUTHBEARER; who has a token alone logs in by that.
        Raises ValueError for a user whom there is not.
        """
        return self._secured.settings(self.bootstrap_servers, user, password, mechanism, token)

    def token(self, user: str, /, **claims: object) -> str:
        """A token as the broker takes it, for an hour: `token("alice", exp=0)` is one that it does not.

        Parameters: `claims` stand in it as they are given; one that is None is left out. Raises ValueError
        for a broker that takes none.
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
    """What a test asks for of a broker with so many nodes. Raises ValueError for what cannot be meant."""
    secured = BrokerSecurity(
        None,
        _checked_users(users),
        None,
        tuple(_checked_names("tokens", tokens)),
        acls is not None,
        tuple([super_users] if isinstance(super_users, str) else super_users),
        secrets.token_urlsafe(),
    )
    shown = _checked_names("certificates", certificates)
    if shown and (secured.users or secured.token_users):
        raise ValueError(
            "clients are known by their certificates or by a login, not by both; leave out certificates, "
            "or users and tokens"
        )
    if secured.super_users and acls is None:
        raise ValueError("super_users need ACLs that they stand above; add acls={}")
    known = [*secured.users, *secured.token_users, *shown]
    for name in secured.super_users:
        if name not in known:
            raise ValueError(
                f"super_users: {name!r} is none of users{close(name, known)}; add it there, with "
                "a password"
            )
    if acls is not None and nodes > 1 and not known:
        raise ValueError(
            "nodes log in at each other where ACLs rule; add users, or leave out nodes"
        )
    return replace(
        secured,
        certificates=Certificates.new(NODE_USER, shown) if tls or shown else None,
        issuer=Issuer() if secured.token_users else None,
    )


def _checked_names(word: str, names: Iterable[str]) -> list[str]:
    found = check_names(word, names)
    if NODE_USER in found:
        raise ValueError(_RESERVED_NAME)
    return found


def _checked_users(users: Passwords | None) -> dict[str, str]:
    if users is None:
        return {}
    if not isinstance(users, Mapping) or not users:
        raise ValueError(f'users are passwords by name, as {{"alice": "secret"}}, not {users!r}')
    for name, password in users.items():
        if not (isinstance(name, str) and name and isinstance(password, str) and password):
            raise ValueError("a user has a name and a password, which are texts and not empty")
    if NODE_USER in users:
        raise ValueError(_RESERVED_NAME)
    return dict(users)


def merged(config: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """A test's properties with those that TLS, users and ACLs bring. Raises ValueError for both."""
    twice = sorted(config.keys() & own.keys())
    if twice:
        raise ValueError(
            f"tls, users and acls set {twice[0]}; leave it out of config, or leave them out and give "
            "listeners"
        )
    return {**config, **own}


def parse_acl(name: str, text: str) -> Acl:
    """One ACL of a user, or of "*": "READ topic orders". Raises ValueError."""
    words = text.split()
    permission = AclPermission.ALLOW
    if words and words[0].upper() in ("ALLOW", "DENY"):
        permission = AclPermission[words.pop(0).upper()]
    if len(words) == 2 and words[1].lower() == "cluster":
        words.append(CLUSTER.name)
    if len(words) != 3:
        raise ValueError(f"acls: {text!r} is none; write {FORM}")
    operation, kind, resource = words
    return Acl(
        _pattern(one_of("acls: what they are about", kind, RESOURCES), resource),
        str(Principal(USER, name)),
        EVERYBODY,
        AclOperation[one_of("acls: what may be done", operation, OPERATIONS)],
        permission,
    )


def _pattern(kind: str, name: str) -> Pattern:
    resource_type = AclResourceType[kind.upper()]
    if name != EVERYBODY and name.endswith("*"):
        return Pattern(resource_type, PatternType.PREFIXED, name[:-1])
    return Pattern(resource_type, PatternType.LITERAL, name)
