"""Registry errors, with the error codes of Confluent's registry."""

from __future__ import annotations

from collections.abc import Mapping

# Content type of all responses, including errors.
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
# Error codes.
NO_SUCH_SUBJECT, NO_SUCH_VERSION, NO_SUCH_SCHEMA = 40401, 40402, 40403
SUBJECT_SOFT_DELETED, SUBJECT_NOT_SOFT_DELETED = 40404, 40405
VERSION_SOFT_DELETED, VERSION_NOT_SOFT_DELETED = 40406, 40407
NO_OWN_LEVEL, NO_OWN_MODE = 40408, 40409
INVALID_SCHEMA, INVALID_VERSION, INVALID_LEVEL, INVALID_MODE = 42201, 42202, 42203, 42204
NOT_PERMITTED, REFERENCE_EXISTS, INVALID_SUBJECT, SCHEMA_TOO_LARGE = 42205, 42206, 42208, 42209
DENIED = 40301
INCOMPATIBLE, BAD_REQUEST, STORE_FAILED, STORE_TIMED_OUT = 409, 400, 50001, 50002


class RegistryError(Exception):
    """A rejected request.

    Attributes:
        code: Error code; its first three digits are the HTTP status.
        headers: Additional HTTP headers of the response.
    """

    def __init__(self, code: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.headers = headers

    @property
    def status(self) -> int:
        """HTTP status."""
        return int(str(self.code)[:3])


def no_such_subject(subject: str) -> RegistryError:
    """Return the error for a subject without versions."""
    return RegistryError(NO_SUCH_SUBJECT, f"Subject '{subject}' not found.")


def no_such_version(version: int | str) -> RegistryError:
    """Return the error for a version that a subject lacks."""
    return RegistryError(NO_SUCH_VERSION, f"Version {version} not found.")


def no_such_schema(identifier: object = "") -> RegistryError:
    """Return the error for an unknown ID or GUID, or for a schema that is not registered."""
    message = f"Schema {identifier} not found" if identifier else "Schema not found"
    return RegistryError(NO_SUCH_SCHEMA, message)


def schema_too_large(reason: str) -> RegistryError:
    """Return the error for a schema that exceeds a limit on size, time or memory."""
    return RegistryError(SCHEMA_TOO_LARGE, f"The schema is too large: {reason}")


def invalid_schema(reason: str) -> RegistryError:
    """Return the error for a malformed schema."""
    return RegistryError(INVALID_SCHEMA, f"Invalid schema: {reason}")
