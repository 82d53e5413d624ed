"""What a server serves by HTTP, where it is asked to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.config import BrokerConfig

from .errors import StartFailed

if TYPE_CHECKING:
    from kbroker.web.service import HttpService


def http_service(config: BrokerConfig) -> HttpService | None:
    """Metrics and probes of the nodes of a process; None where no port is named for them.

    Raises StartFailed when it cannot be.
    """
    if config.http_port < 0:
        return None
    try:
        from kbroker.web.service import HttpService  # what it needs most installations do not have
    except ModuleNotFoundError as error:
        missing = f"--http-port needs {error.name}: pip install 'kbroker[console]'"
        raise StartFailed(missing) from None
    return HttpService(config)
