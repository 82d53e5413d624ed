"""A certificate authority for tests of TLS."""

from ..security.conftest import authority

__all__ = ["authority"]
