"""Startup checks of inter-broker authentication and authorization."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kbroker.cluster.peers import find_inter_broker_listener_name
from kbroker.config import BrokerConfig
from kbroker.net.server import Listener
from kbroker.security.acls import AuthorizerSettings
from kbroker.security.principals import ANONYMOUS, USER, Principal

from .errors import StartFailed

logger = logging.getLogger(__name__)


def check_inter_broker_security(config: BrokerConfig, listeners: Sequence[Listener]) -> None:
    """Check that nodes can authenticate with each other and replicate.

    Args:
        config: Settings of the nodes.
        listeners: Listeners of each node.

    Raises:
        StartFailed: Nodes cannot authenticate, or would be anonymous while ACLs are enforced.
    """
    by_name = {each.name: each for each in listeners}
    listener = by_name[find_inter_broker_listener_name(config, by_name)]
    name = _login_name(listener)
    if not config.authorizer_class:
        return
    supers = AuthorizerSettings.read(config.super_users, allows_without_acls=False).super_users
    if name is not None:
        principal = str(Principal(USER, name))
        if principal not in supers:
            logger.warning(
                "the inter-broker principal %s is not in super.users; followers cannot replicate "
                "without an ACL that allows CLUSTER_ACTION on the cluster",
                principal,
            )
    elif not listener.requires_client_certificate and str(ANONYMOUS) not in supers:
        raise StartFailed(
            f"inter-broker listener {listener.name} does not authenticate nodes, so followers cannot "
            "replicate with authorizer.class.name; set inter.broker.listener.name to a SASL listener, "
            "or to an SSL listener with ssl.client.auth=required"
        )


def _login_name(listener: Listener) -> str | None:
    """Return the user name of inter-broker authentication, or None without SASL or with a token."""
    if listener.security is None or listener.users is None:
        return None
    from kbroker.client.credentials import BadSecurity  # most nodes never need it

    try:
        credentials = listener.security.credentials()
    except BadSecurity as error:
        raise StartFailed(
            f"nodes cannot authenticate on inter-broker listener {listener.name}: {error}; set "
            "sasl.mechanism.inter.broker.protocol, and username=... and password=... in the "
            "listener's sasl.jaas.config, or set inter.broker.listener.name to another listener"
        ) from None
    return (credentials.name or None) if credentials else None
