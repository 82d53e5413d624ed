"""A broker under test that does not trust everybody: TLS, users and ACLs in the words of a test."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbroker.config import BrokerConfig
from kbroker.net.server import Listener
from kbroker.node.gate import Gate
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
from kbroker.security.scram import ScramMechanism
from kbroker.security.users import PLAIN

from .client_settings import ClientSettings, Login, protocol_of
from .given import one_of
from .names import close

Users = Mapping[str, str]
"""Passwords by name."""
Rights = Mapping[str, Iterable[str]]
"""What users may do: `{"alice": ["READ topic orders", "WRITE topic invoices-*"]}`."""

MECHANISMS: Final = (ScramMechanism.SHA_512, ScramMechanism.SHA_256, PLAIN)
"""Those by which users log in; the first one unless a test asks for another."""
HOST = "127.0.0.1"
NAMES = ("localhost", "127.0.0.1", "::1")
NODE = "kbroker-node"
"""As whom nodes log in at each other."""
EVERYBODY = "*"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OPERATIONS = tuple(each.name for each in AclOperation if each > AclOperation.ANY)
RESOURCES = ("topic", "group", "cluster", "transactional_id")
FORM = '"READ topic orders", "WRITE topic invoices-*", "DENY READ topic orders", "CREATE cluster"'


@dataclass(frozen=True, slots=True)
class Certificates:
    """A certificate with its key, and that of the authority who has issued it, as PEM."""

    chain: str
    key: str = field(repr=False)
    authority: str

    @classmethod
    def new(cls) -> Certificates:
        """Of an authority that nobody else has. Raises ValueError where what it takes is not there."""
        try:
            import trustme
        except ModuleNotFoundError:
            raise ValueError("tls=True needs trustme: pip install 'kbroker[testing]'") from None
        authority = trustme.CA(organization_name="kbroker test")
        own = authority.issue_cert(*NAMES)
        chain = b"".join(each.bytes() for each in own.cert_chain_pems)
        key = own.private_key_pem.bytes()
        return cls(chain.decode(), key.decode(), authority.cert_pem.bytes().decode())


@dataclass(frozen=True, slots=True)
class Secured:
    """What the one listener of a broker under test asks of its clients."""

    certificates: Certificates | None
    users: Users = field(repr=False)
    has_acls: bool
    super_users: tuple[str, ...]
    node_password: str = field(repr=False)

    @property
    def name(self) -> str:
        """Of the listener: that of its protocol."""
        return protocol_of(tls=self.certificates is not None, has_login=bool(self.users))

    def properties(self) -> dict[str, str]:
        """The properties of the broker that say so."""
        return self._tls() | self._logins() | self._access()

    def _tls(self) -> dict[str, str]:
        if self.certificates is None:
            return {}
        return {
            "ssl.keystore.certificate.chain": self.certificates.chain,
            "ssl.keystore.key": self.certificates.key,
            "ssl.truststore.certificates": self.certificates.authority,
        }

    def _logins(self) -> dict[str, str]:
        if not self.users:
            return {}
        own = {"username": NODE, "password": self.node_password, f"user_{NODE}": self.node_password}
        users = {f"user_{name}": password for name, password in self.users.items()}
        found = {
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.mechanism.inter.broker.protocol": PLAIN,
        }
        prefix = f"listener.name.{self.name.lower()}"
        for each in MECHANISMS:
            module = "PlainLoginModule" if each == PLAIN else "ScramLoginModule"
            options = users | own if each == PLAIN else users
            found[f"{prefix}.{each.lower()}.sasl.jaas.config"] = jaas_text(module, options)
        return found

    def _access(self) -> dict[str, str]:
        if not self.has_acls:
            return {}
        supers = [*self.super_users, *([NODE] if self.users else [])]
        return {
            "authorizer.class.name": AUTHORIZER,
            "super.users": ";".join(str(Principal(USER, name)) for name in supers),
        }

    def listener(self, config: BrokerConfig) -> Listener:
        """The listener, on a free port, of a broker with such a configuration. Raises ConfigError."""
        protocol = protocol_of(tls=self.certificates is not None, has_login=bool(self.users))
        is_open = self.certificates is None and not self.users
        gate = None if is_open else Gate(self.name, protocol, config, is_exposed=False)
        return Listener(self.name, HOST, 0, gate=gate)

    def settings(
        self, bootstrap: str, user: str | None, password: str | None, mechanism: str | None
    ) -> ClientSettings:
        """Those of a client. Raises ValueError for a user whom there is not."""
        authority = None if self.certificates is None else self.certificates.authority
        if not self.users:
            if user is not None:
                raise ValueError(
                    f'nobody logs in at this broker; make it with users={{"{user}": ...}}'
                )
            return ClientSettings(bootstrap, authority)
        if user is None:
            user = next(iter(self.users))
        if password is None:
            password = self.users.get(user)
        if password is None:
            raise ValueError(
                f"there is no user {user!r}{close(user, list(self.users))}; add it to users, or name a "
                "password too, to see how a stranger is turned away"
            )
        by = one_of("mechanism", mechanism or MECHANISMS[0], MECHANISMS)
        return ClientSettings(bootstrap, authority, Login(user, password, str(by)))

    def rules(self, rights: Rights) -> list[Acl]:
        """ACLs as a test says them. Raises ValueError."""
        return [
            rule_of(name, text)
            for name, texts in rights.items()
            for text in self._texts(name, texts)
        ]

    def _texts(self, name: str, texts: Iterable[str]) -> list[str]:
        known = [*self.users, EVERYBODY] if self.users else [ANONYMOUS.name, EVERYBODY]
        if name not in known:
            raise ValueError(
                f"acls: {name!r} is nobody here{close(name, known)}; there are {', '.join(known)}"
            )
        return list(texts)


OPEN = Secured(None, {}, has_acls=False, super_users=(), node_password="")
"""What lets everybody do everything."""


def asked(
    *,
    tls: bool,
    users: Users | None,
    acls: Rights | None,
    super_users: Iterable[str],
    nodes: int,
) -> Secured:
    """What a test asks for of a broker with so many nodes. Raises ValueError for what cannot be meant."""
    names = [super_users] if isinstance(super_users, str) else list(super_users)
    known = _checked_users(users)
    if names and acls is None:
        raise ValueError("super_users need ACLs that they stand above; add acls={}")
    for name in names:
        if name not in known:
            raise ValueError(
                f"super_users: {name!r} is none of users{close(name, list(known))}; add it there, with "
                "a password"
            )
    if acls is not None and nodes > 1 and not known:
        raise ValueError(
            "nodes log in at each other where ACLs rule; add users, or leave out nodes"
        )
    return Secured(
        Certificates.new() if tls else None,
        known,
        acls is not None,
        tuple(names),
        secrets.token_urlsafe(),
    )


def _checked_users(users: Users | None) -> dict[str, str]:
    if users is None:
        return {}
    if not isinstance(users, Mapping) or not users:
        raise ValueError(f'users are passwords by name, as {{"alice": "secret"}}, not {users!r}')
    for name, password in users.items():
        if not (isinstance(name, str) and name and isinstance(password, str) and password):
            raise ValueError("a user has a name and a password, which are texts and not empty")
    if NODE in users:
        raise ValueError(f"{NODE} is the name of the broker's own nodes; call that user otherwise")
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


def rule_of(name: str, text: str) -> Acl:
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
