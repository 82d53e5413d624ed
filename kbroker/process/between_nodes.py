"""Whether nodes would come in at each other, before they are started."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kbroker.cluster.peers import listener_of_nodes
from kbroker.config import BrokerConfig
from kbroker.net.server import Listener
from kbroker.security.acls import AuthorizerSettings
from kbroker.security.principals import ANONYMOUS, USER, Principal

from .errors import StartFailed

logger = logging.getLogger(__name__)


def check_between_nodes(config: BrokerConfig, listeners: Sequence[Listener]) -> None:
    """Raise StartFailed where no node could log in at another one, or would be let do nothing there.

    `listeners` are those of each of the nodes.
    """
    by_name = {each.name: each for each in listeners}
    listener = by_name[listener_of_nodes(config, by_name)]
    name = _login_name(listener)
    if not config.authorizer_class:
        return
    supers = AuthorizerSettings.read(config.super_users, allows_without_acls=False).super_users
    if name is not None:
        principal = str(Principal(USER, name))
        if principal not in supers:
            logger.warning(
                "nodes log in at each other as %s, who is none of super.users: they follow nobody "
                "without an ACL that allows them CLUSTER_ACTION on the cluster",
                principal,
            )
    elif not listener.requires_client_certificate and str(ANONYMOUS) not in supers:
        raise StartFailed(
            f"nodes reach each other by listener {listener.name} and show nobody who they are there, so "
            "that none could follow another one with authorizer.class.name: name one with a login, or of "
            "SSL with ssl.client.auth=required, by inter.broker.listener.name"
        )


def _login_name(listener: Listener) -> str | None:
    """As whom nodes log in; None where they do not, or a token says it."""
    if listener.security is None or listener.users is None:
        return None
    from kbroker.client.security import BadSecurity  # most nodes never need it

    try:
        credentials = listener.security.credentials()
    except BadSecurity as error:
        raise StartFailed(
            f"nodes log in at each other on listener {listener.name}, and these cannot: {error}. Set "
            "sasl.mechanism.inter.broker.protocol, and username=... and password=... in that listener's "
            "sasl.jaas.config, or name another one by inter.broker.listener.name"
        ) from None
    return (credentials.name or None) if credentials else None
