"""Delegation tokens: create, renew, expire and describe (KIP-48)."""

from __future__ import annotations

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.security import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kbroker.security.acls import AclOperation, AclResourceType, Resource
from kbroker.security.delegation import DelegationKey, DelegationToken, check_principals
from kbroker.security.principals import ANONYMOUS, Principal

from .context import USER, Context
from .registry import handles

UNKNOWN_TIME = -1


def _may_request_tokens(ctx: Context) -> bool:
    """Return True if the client is authenticated, and not by a delegation token."""
    login = ctx.peer.login
    if login is None:
        return ctx.peer.client.principal != ANONYMOUS
    return not login.is_delegated


def _cause(ctx: Context) -> str:
    return f"{ApiKey(ctx.key).api_name} by {ctx.client_id}"


@handles(ApiKey.CREATE_DELEGATION_TOKEN, versions="1-3")
async def create_delegation_token(
    ctx: Context, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    """Create a token with which clients authenticate as the requester.

    Versions: 3 can name another owner, which needs CREATE_TOKENS on that user (KIP-373).

    Errors: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    INVALID_PRINCIPAL_TYPE, DELEGATION_TOKEN_AUTH_DISABLED; POLICY_VIOLATION if the limit of tokens
    or of names is exceeded.

    Differs from Kafka: the principal type of an owner must be User.
    """
    requester = owner = ctx.peer.client.principal
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
    answer = CreateDelegationTokenResponse(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
    )
    try:
        renewers = await _checked_renewers(ctx, request, owner)
    except KafkaError as error:
        answer.error_code = error.code
        answer.issue_timestamp_ms = answer.expiry_timestamp_ms = UNKNOWN_TIME
        answer.max_timestamp_ms = UNKNOWN_TIME
        return answer
    delegation = ctx.node.delegation
    try:
        token = await delegation.create(
            owner, requester, renewers, request.max_lifetime_ms, cause=_cause(ctx)
        )
    except KafkaError as error:
        answer.error_code = error.code
        return answer
    answer.issue_timestamp_ms = token.issued_ms
    answer.expiry_timestamp_ms = token.expires_ms
    answer.max_timestamp_ms = token.max_ms
    answer.token_id = token.id
    answer.hmac = delegation.key.hmac(token.id)
    return answer


async def _checked_renewers(
    ctx: Context, request: CreateDelegationTokenRequest, owner: Principal
) -> list[Principal]:
    """Return the renewers of the token, after all checks of the request.

    Raises:
        KafkaError: The client may not create the token, or a principal is invalid.
    """
    if not _may_request_tokens(ctx):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if owner != ctx.peer.client.principal:
        ctx.require(AclOperation.CREATE_TOKENS, Resource(USER, str(owner)))
    rows = ctx.time_slice.each(request.renewers)
    renewers = [Principal(each.principal_type, each.principal_name) async for each in rows]
    check_principals(owner, renewers)
    return renewers


@handles(ApiKey.RENEW_DELEGATION_TOKEN, versions="1-2")
async def renew_delegation_token(
    ctx: Context, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    """Extend the expiry time of a token, up to its maximum lifetime.

    Errors: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, DELEGATION_TOKEN_AUTH_DISABLED,
    DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED; DELEGATION_TOKEN_OWNER_MISMATCH if the
    client is neither the owner nor a renewer.
    """
    cls = RenewDelegationTokenResponse
    if not _may_request_tokens(ctx):
        code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return cls(error_code=code, expiry_timestamp_ms=UNKNOWN_TIME)
    try:
        expires_ms = await ctx.node.delegation.renew(
            bytes(request.hmac),
            ctx.peer.client.principal,
            request.renew_period_ms,
            cause=_cause(ctx),
        )
    except KafkaError as error:
        return cls(error_code=error.code)
    return cls(expiry_timestamp_ms=expires_ms)


@handles(ApiKey.EXPIRE_DELEGATION_TOKEN, versions="1-2")
async def expire_delegation_token(
    ctx: Context, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    """Change the expiry time of a token. A negative period expires it at once.

    Clients that authenticated with the token keep their session until it ends.

    Errors: as in RenewDelegationToken.
    """
    cls = ExpireDelegationTokenResponse
    if not _may_request_tokens(ctx):
        code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return cls(error_code=code, expiry_timestamp_ms=UNKNOWN_TIME)
    try:
        expires_ms = await ctx.node.delegation.end(
            bytes(request.hmac),
            ctx.peer.client.principal,
            request.expiry_time_period_ms,
            cause=_cause(ctx),
        )
    except KafkaError as error:
        return cls(error_code=error.code)
    return cls(expiry_timestamp_ms=expires_ms)


@handles(ApiKey.DESCRIBE_DELEGATION_TOKEN, versions="1-3", read_only=True)
async def describe_delegation_token(
    ctx: Context, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """List the visible tokens of some owners or of all, with their HMACs.

    Visible are tokens that the client owns, requested or may renew, tokens for which it has
    DESCRIBE, and tokens of users for which it has DESCRIBE_TOKENS (KIP-373).

    Errors: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, DELEGATION_TOKEN_AUTH_DISABLED.
    """
    cls = DescribeDelegationTokenResponse
    if not _may_request_tokens(ctx):
        return cls(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    try:
        key = ctx.node.delegation.key
    except KafkaError as error:
        return cls(error_code=error.code)
    wanted: set[Principal] | None = None
    if request.owners is not None:
        owners = ctx.time_slice.each(request.owners)
        wanted = {Principal(each.principal_type, each.principal_name) async for each in owners}
    tokens = ctx.node.cluster.delegation_tokens if wanted is None or wanted else ()
    return cls(
        tokens=[
            _token_row(token, key)
            async for token in ctx.time_slice.each(tokens)
            if _is_wanted(token, wanted) and _may_see(ctx, token) and key.has_created(token)
        ]
    )


def _is_wanted(token: DelegationToken, wanted: set[Principal] | None) -> bool:
    if wanted is None:
        return True
    return not wanted.isdisjoint((token.owner, token.requester, *token.renewers))


def _may_see(ctx: Context, token: DelegationToken) -> bool:
    if token.concerns(ctx.peer.client.principal):
        return True
    permissions = (
        (AclOperation.DESCRIBE, Resource(AclResourceType.DELEGATION_TOKEN, token.id)),
        (AclOperation.DESCRIBE_TOKENS, Resource(USER, str(token.owner))),
    )
    return any(ctx.allows(*permission, is_filter=True) for permission in permissions)


def _token_row(token: DelegationToken, key: DelegationKey) -> DescribeDelegationTokenResponse.Token:
    cls = DescribeDelegationTokenResponse
    return cls.Token(
        principal_type=token.owner.type,
        principal_name=token.owner.name,
        token_requester_principal_type=token.requester.type,
        token_requester_principal_name=token.requester.name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.id,
        hmac=key.hmac(token.id),
        renewers=[
            cls.Renewer(principal_type=each.type, principal_name=each.name)
            for each in token.renewers
        ],
    )
