"""Security of a listener, by the current settings: certificates and users (KIP-226)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import trio

from kbroker.config import BrokerConfig, ConfigError
from kbroker.security.errors import BadSettings
from kbroker.security.principals import ANONYMOUS, USER, Principal
from kbroker.security.protocols import SecurityProtocol

if TYPE_CHECKING:
    from kbroker.client.credentials import Credentials
    from kbroker.runtime.threads import InThread
    from kbroker.security.certificate_names import MappingRules
    from kbroker.security.delegation import TokenUsers
    from kbroker.security.login import Login
    from kbroker.security.tls import Certificates
    from kbroker.security.users import StoredUsers, Users

CLIENT_AUTH = "ssl.client.auth"
PLAIN_OVER_PLAINTEXT = "sasl.plain.over.plaintext.enable"
NODES_MECHANISM = "sasl.mechanism.inter.broker.protocol"


class _Asked(NamedTuple):
    """What settings ask of who comes in."""

    certificates: Certificates | None
    users: Users | None
    rules: MappingRules | None


class ListenerSecurity:
    """The certificates and the users of one listener.

    Users can log in once `prepare` returns. Users that later settings add can log in once `settle`
    returns: `run` prepares them in a thread, because each takes milliseconds.

    Args:
        name: Name of the listener.
        protocol: Security protocol of the listener.
        config: Settings of the node.
        is_exposed: True if other machines can reach the listener.

    Raises:
        ConfigError: The certificates or users cannot be used, or the listener would send passwords in
            plain text to other machines.
    """

    def __init__(
        self, name: str, protocol: SecurityProtocol, config: BrokerConfig, *, is_exposed: bool
    ) -> None:
        self.name = name
        self.certificates: Certificates | None = None
        self.users: Users | None = None
        self._rules: MappingRules | None = None
        self._setting: Callable[..., str] = config.lookup_for_listener(name)
        self._credentials: Credentials | None = None
        self.stored_users: StoredUsers | None = None
        """Those of the cluster of its node, once there is one."""
        self.delegation: TokenUsers | None = None
        """Its delegation tokens, likewise."""
        self._protocol = protocol
        self._is_exposed = is_exposed
        self._coming: Users | None = None
        self._has_coming = trio.Event()
        self._is_settled = trio.Event()
        self._is_settled.set()
        self._is_prepared = False
        self.obey(config)

    def of_node(self, config: BrokerConfig) -> ListenerSecurity:
        """Return the security of the same listener for another node's settings. Raises ConfigError."""
        return ListenerSecurity(self.name, self._protocol, config, is_exposed=self._is_exposed)

    @property
    def requires_client_certificate(self) -> bool:
        """Return True if clients must authenticate."""
        has_certificate = (
            self.certificates is not None and self.certificates.requires_client_certificate
        )
        return has_certificate or self._protocol.has_login

    @property
    def lacks_users(self) -> bool:
        """Return True if clients must authenticate, but no user exists."""
        if self.users is None or self.users.tokens is not None or self.users.has_own:
            return False
        from kbroker.security.scram import ScramMechanism  # most nodes never need it

        stored = self.stored_users
        return stored is None or not any(
            stored.shapes(each) for each in ScramMechanism if each in self.users.mechanisms
        )

    def principal_of(self, certificate: bytes | None) -> Principal:
        """Who comes in with that certificate (DER), which was verified, and does not log in.

        Raises AuthenticationError for one that names nobody.
        """
        if certificate is None or self._rules is None:
            return ANONYMOUS
        from kbroker.security.certificate_names import subject_of  # most nodes never need it

        return Principal(USER, self._rules.name_of(subject_of(certificate)))

    def credentials(self) -> Credentials | None:
        """By which its node logs in at the same listener of others; None where nobody logs in.

        Raises BadSecurity when there are none.
        """
        if self.users is None or self._credentials is not None:
            return self._credentials
        from kbroker.client.security import JAAS, MECHANISM, credentials_of  # as above
        from kbroker.client.tokens import SETTINGS
        from kbroker.security.users import only_module

        mechanism = self._setting(NODES_MECHANISM, None)
        given = {name: self._setting(name, mechanism) for name in (JAAS, *SETTINGS)}
        given[JAAS] = only_module(mechanism, given[JAAS])
        present = {name: text for name, text in given.items() if text}
        self._credentials = credentials_of(present | {MECHANISM: mechanism})
        return self._credentials

    def login(self) -> Login | None:
        """That of a new connection; None where nobody logs in."""
        if self.users is None:
            return None
        from kbroker.security.login import Login  # as above

        return Login(self._known)

    def _known(self) -> Users:
        """The users now: a second login on a connection is not by the passwords of before."""
        assert self.users is not None  # it stays a listener with logins
        return self.users

    def check(self, config: BrokerConfig) -> None:
        """Raise ConfigError for settings that `obey` could not follow."""
        self._made(config)

    def obey(self, config: BrokerConfig) -> None:
        """Ask this of who comes from now on. Raises ConfigError, and then all is as it was."""
        self.certificates, users, self._rules = self._made(config)
        self._setting, self._credentials = config.lookup_for_listener(self.name), None
        if users is None or users is self._newest_users:
            return
        if self._is_prepared:
            self._coming = users
            if self._is_settled.is_set():
                self._is_settled = trio.Event()
            self._has_coming.set()
        else:
            self.users = users

    async def prepare(self, in_thread: InThread) -> None:
        """Make the first users ready, before clients come; the secret of the cluster is known."""
        while not self._is_prepared:
            users = self.users
            if users is not None:
                await in_thread(users.prepare)
            self._is_prepared = users is self.users

    async def run(self, in_thread: InThread) -> None:
        """Make new users ready, and keep the keys of tokens new, until cancelled."""
        while True:
            async with trio.open_nursery() as nursery:
                if self.users is not None and self.users.tokens is not None:
                    from .token_keys import TokenKeys  # as above

                    nursery.start_soon(TokenKeys(self.users.tokens, self.name).run, in_thread)
                await self._has_coming.wait()
                self._has_coming = trio.Event()
                coming = self._coming
                assert coming is not None
                await in_thread(coming.prepare)
                self.users = coming
                if coming is self._coming:
                    self._coming = None
                    self._is_settled.set()
                nursery.cancel_scope.cancel()

    async def settle(self) -> None:
        """Wait until what was obeyed last rules."""
        await self._is_settled.wait()

    @property
    def _newest_users(self) -> Users | None:
        return self._coming or self.users

    def _made(self, config: BrokerConfig) -> _Asked:
        """What is asked for now: what there is already, where that is the same."""
        setting = config.lookup_for_listener(self.name)
        if self._protocol.has_login and not config.has_listener_override(self.name, CLIENT_AUTH):
            setting = _without_client_auth(setting)
        try:
            certificates = self._certificates(setting) if self._protocol.is_encrypted else None
            users = self._users(setting) if self._protocol.has_login else None
            names_by_certificate = certificates is not None and users is None
            rules = _mapping_rules(setting) if names_by_certificate else None
        except BadSettings as error:
            raise ConfigError(f"listener {self.name}: {error}") from None
        return _Asked(certificates, users, rules)

    def _certificates(self, setting: Callable[..., str]) -> Certificates:
        from kbroker.security.tls import Certificates, settings_snapshot  # most nodes never need it

        known = self.certificates
        if known is not None and known.settings == settings_snapshot(setting):
            return known
        return Certificates(setting, time.monotonic)

    def _users(self, setting: Callable[..., str]) -> Users:
        from kbroker.security.users import OAUTHBEARER, PLAIN, Users, settings_snapshot  # as above

        known = self._newest_users
        if known is not None and known.settings == settings_snapshot(setting):
            return known
        users = Users(setting, lambda: self.stored_users, lambda: self.delegation)
        if self._is_exposed and not self._protocol.is_encrypted:
            way_out = "use SASL_SSL, or SCRAM-SHA-256 in sasl.enabled.mechanisms"
            allows_plain = setting(PLAIN_OVER_PLAINTEXT) == "true"
            if PLAIN in users.mechanisms and not allows_plain:
                raise BadSettings(
                    "PLAIN sends passwords as they are, and other machines reach this listener; "
                    f"{way_out}, or set {PLAIN_OVER_PLAINTEXT}=true if the network is trusted"
                )
            if OAUTHBEARER in users.mechanisms:
                raise BadSettings(
                    "OAUTHBEARER sends tokens as they are, and other machines reach this listener; "
                    f"{way_out}"
                )
        return users


def _without_client_auth(setting: Callable[..., str]) -> Callable[..., str]:
    """Clients that log in are asked for certificates only by a setting of their own listener (KIP-684)."""

    def other(name: str, mechanism: str | None = None) -> str:
        return "none" if name == CLIENT_AUTH else setting(name, mechanism)

    return other


def _mapping_rules(setting: Callable[..., str]) -> MappingRules | None:
    """How certificates name their owners; None where nobody is asked for one."""
    if setting(CLIENT_AUTH) == "none":
        return None
    from kbroker.security.certificate_names import RULES, MappingRules  # as above

    return MappingRules(setting(RULES))
