"""SASL, ACLs, delegation tokens and SCRAM credentials."""

from ..schema import Int8, Int16, Int32, Int64, message, struct, wire


@message(key=17, versions="0-1")
class SaslHandshakeRequest:
    """Request to use a SASL mechanism.

    Version 0 is followed by raw tokens without headers, version 1 by `SaslAuthenticateRequest`.
    """

    mechanism: str = ""


@message(key=17, versions="0-1")
class SaslHandshakeResponse:
    """The mechanisms that the listener offers."""

    error_code: Int16 = 0
    mechanisms: list[str] = wire()


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    """One token of a SASL exchange from the client (KIP-152)."""

    auth_bytes: bytes = wire(secret=True)


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    """The server's next token."""

    error_code: Int16 = 0
    error_message: str | None = None
    auth_bytes: bytes = wire(secret=True)
    session_lifetime_ms: Int64 = wire(since=1)
    """0: the session does not expire (KIP-368)."""


@message(key=29, versions="0-3", flexible="2+")
class DescribeAclsRequest:
    """Request for the ACLs that match a filter; null and ANY match everything."""

    resource_type_filter: Int8 = 0
    resource_name_filter: str | None = None
    pattern_type_filter: Int8 = wire(since=1, default=3)
    principal_filter: str | None = None
    host_filter: str | None = None
    operation: Int8 = 0
    permission_type: Int8 = 0


@message(key=29, versions="0-3", flexible="2+")
class DescribeAclsResponse:
    """ACLs by resource."""

    @struct
    class Acl:
        principal: str = ""
        host: str = ""
        operation: Int8 = 0
        permission_type: Int8 = 0

    @struct
    class Resource:
        resource_type: Int8 = 0
        resource_name: str = ""
        pattern_type: Int8 = wire(since=1, default=3)
        acls: list["DescribeAclsResponse.Acl"] = wire()

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    resources: list[Resource] = wire()


@message(key=30, versions="0-3", flexible="2+")
class CreateAclsRequest:
    """Request to create ACLs."""

    @struct
    class Acl:
        resource_type: Int8 = 0
        resource_name: str = ""
        resource_pattern_type: Int8 = wire(since=1, default=3)
        principal: str = ""
        host: str = ""
        operation: Int8 = 0
        permission_type: Int8 = 0

    creations: list[Acl] = wire()


@message(key=30, versions="0-3", flexible="2+")
class CreateAclsResponse:
    """Outcome per ACL, in the order of the request."""

    @struct
    class Result:
        error_code: Int16 = 0
        error_message: str | None = None

    throttle_time_ms: Int32 = 0
    results: list[Result] = wire()


@message(key=31, versions="0-3", flexible="2+")
class DeleteAclsRequest:
    """Request to delete all ACLs that match one of the filters."""

    @struct
    class Filter:
        resource_type_filter: Int8 = 0
        resource_name_filter: str | None = None
        pattern_type_filter: Int8 = wire(since=1, default=3)
        principal_filter: str | None = None
        host_filter: str | None = None
        operation: Int8 = 0
        permission_type: Int8 = 0

    filters: list[Filter] = wire()


@message(key=31, versions="0-3", flexible="2+")
class DeleteAclsResponse:
    """The deleted ACLs per filter, in the order of the request."""

    @struct
    class Acl:
        error_code: Int16 = 0
        error_message: str | None = None
        resource_type: Int8 = 0
        resource_name: str = ""
        pattern_type: Int8 = wire(since=1, default=3)
        principal: str = ""
        host: str = ""
        operation: Int8 = 0
        permission_type: Int8 = 0

    @struct
    class Result:
        error_code: Int16 = 0
        error_message: str | None = None
        matching_acls: list["DeleteAclsResponse.Acl"] = wire()

    throttle_time_ms: Int32 = 0
    filter_results: list[Result] = wire()


@message(key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest:
    """Request for a delegation token of the sender or, from version 3, another owner (KIP-48)."""

    @struct
    class Renewer:
        principal_type: str = ""
        principal_name: str = ""

    owner_principal_type: str | None = wire(since=3)
    owner_principal_name: str | None = wire(since=3)
    renewers: list[Renewer] = wire()
    max_lifetime_ms: Int64 = 0


@message(key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse:
    """The new token."""

    error_code: Int16 = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = wire(since=3)
    token_requester_principal_name: str = wire(since=3)
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: str = ""
    hmac: bytes = wire(secret=True)
    throttle_time_ms: Int32 = 0


@message(key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    """Request to renew a delegation token."""

    hmac: bytes = wire(secret=True)
    renew_period_ms: Int64 = 0


@message(key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    """The new expiry time of a token."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0


@message(key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest:
    """Request to change the expiry time of a delegation token; a negative period expires it now."""

    hmac: bytes = wire(secret=True)
    expiry_time_period_ms: Int64 = 0


@message(key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse:
    """The new expiry time of a token."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0


@message(key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest:
    """Request for the delegation tokens of some or (null) all owners."""

    @struct
    class Owner:
        principal_type: str = ""
        principal_name: str = ""

    owners: list[Owner] | None = None


@message(key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse:
    """Delegation tokens that the sender may see."""

    @struct
    class Renewer:
        principal_type: str = ""
        principal_name: str = ""

    @struct
    class Token:
        principal_type: str = ""
        principal_name: str = ""
        token_requester_principal_type: str = wire(since=3)
        token_requester_principal_name: str = wire(since=3)
        issue_timestamp: Int64 = 0
        expiry_timestamp: Int64 = 0
        max_timestamp: Int64 = 0
        token_id: str = ""
        hmac: bytes = wire(secret=True)
        renewers: list["DescribeDelegationTokenResponse.Renewer"] = wire()

    error_code: Int16 = 0
    tokens: list[Token] = wire()
    throttle_time_ms: Int32 = 0


@message(key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    """Request for the SCRAM credentials of users; null means all users (KIP-554)."""

    @struct
    class User:
        name: str = ""

    users: list[User] | None = None


@message(key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    """Mechanisms and iterations per user; never the secrets."""

    @struct
    class Credential:
        mechanism: Int8 = 0
        iterations: Int32 = 0

    @struct
    class User:
        user: str = ""
        error_code: Int16 = 0
        error_message: str | None = None
        credential_infos: list["DescribeUserScramCredentialsResponse.Credential"] = wire()

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    results: list[User] = wire()


@message(key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest:
    """Request to set or delete SCRAM credentials (KIP-554)."""

    @struct
    class Deletion:
        name: str = ""
        mechanism: Int8 = 0

    @struct
    class Upsertion:
        """A new or changed credential."""

        name: str = ""
        mechanism: Int8 = 0
        iterations: Int32 = 0
        salt: bytes = b""
        salted_password: bytes = wire(secret=True)

    deletions: list[Deletion] = wire()
    upsertions: list[Upsertion] = wire()


@message(key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    """Outcome per user."""

    @struct
    class User:
        user: str = ""
        error_code: Int16 = 0
        error_message: str | None = None

    throttle_time_ms: Int32 = 0
    results: list[User] = wire()
