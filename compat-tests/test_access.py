"""Random users and ACLs on kbroker and on Apache Kafka 4.4 with its StandardAuthorizer.

Both brokers must give every user the same response to the same request, in every field.
With `make soak PART=access`, every user sends every version of every API.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from harness.access_calls import (
    BUILDERS,
    LOGIN_APIS,
    NAMES,
    OPEN,
    OPERATOR,
    RequestContext,
    acls,
    creation_of,
    operators,
    users,
)
from harness.admin_calls import NOWHERE, World, of, request
from harness.compare import Comparison, Difference
from harness.differences import ACCESS_DIFFERENCES, DIFFERENCES
from harness.differential import SETTLE_SECONDS, renamed
from harness.logins import ADMIN, PASSWORD, secured_brokers
from harness.raw import NoAnswer, RawConnection

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.schema import Struct, fields
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.security.acls import Acl

CLIENT = "differential"
SEED = int(os.environ.get("KBROKER_COMPAT_SEED", "1"))
USERS, ACLS = 50, 200
# Number of users that send each version of each API.
USERS_PER_VERSION = int(os.environ.get("KBROKER_COMPAT_ASKERS", "2"))
# Each operator sends each API. All other users may be rejected, which would leave no other response
# to compare.
OPERATORS = sorted({each.principal.removeprefix("User:") for each in operators()})
# Requests of the operator with all permissions per API. Some topics and groups are denied to all
# users.
OPERATOR_REQUESTS = 8
SHARE = SharePartitionKey("nobody", NOWHERE, 0).name
# Transaction timeout of the open transaction.
TRANSACTION_TIMEOUT_MS = 900_000
# Fields whose values each broker generates.
GENERATED_TOKEN_FIELDS = {
    "token_id",
    "hmac",
    "issue_timestamp",
    "expiry_timestamp",
    "max_timestamp",
}
AUTHORIZATION_ERRORS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
# Read-only APIs. Their requests are repeated until both brokers have applied the latest changes.
READ_ONLY_APIS = {
    ApiKey.METADATA,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.LIST_GROUPS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.API_VERSIONS,
}


@dataclass(slots=True)
class SecuredBroker:
    """One of the two brokers, with one connection per user."""

    address: str
    world: World = field(default_factory=World)
    _connections: dict[str, RawConnection] = field(default_factory=dict)

    def ask(self, user: str, key: ApiKey, version: int, message: Any) -> Any:
        """Send a request as a user. Raises NoAnswer if the broker closes the connection."""
        if user not in self._connections:
            connection = RawConnection(self.address)
            connection.log_in(user, PASSWORD)
            self._connections[user] = connection
        try:
            return self._connections[user].ask(key, version, message)
        except (NoAnswer, OSError) as error:
            self._connections.pop(user).close()
            raise NoAnswer(str(error)) from error

    def served(self) -> dict[ApiKey, range]:
        """Return the supported versions of each API."""
        hello = request(ApiKey.API_VERSIONS, client_software_name="a", client_software_version="1")
        answer = self.ask(ADMIN, ApiKey.API_VERSIONS, 3, hello)
        return {
            ApiKey(row.api_key): range(row.min_version, row.max_version + 1)
            for row in answer.api_keys
            if row.api_key in set(ApiKey)
        }

    def close(self) -> None:
        for each in self._connections.values():
            each.close()


@dataclass(slots=True)
class Outcome:
    """Results of all requests."""

    comparison: Comparison
    differences: list[Difference]
    versions_by_api: dict[ApiKey, range]
    requests: int = 0
    refused: int = 0
    partly: int = 0
    # APIs that at least one request was permitted to use.
    allowed: set[ApiKey] = field(default_factory=set)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """Create the same users and ACLs on both brokers and send all requests."""
    directories = [tmp_path_factory.mktemp(each) for each in ("kbroker", "apache")]
    secret = {"delegation.token.secret.key": "a secret of the test"}
    brokers = secured_brokers(*directories, (*OPERATORS, *users(USERS)), secret)
    try:
        for broker in brokers:
            broker.start()
        sides = [
            SecuredBroker(broker.address, World(directories=[str(broker.data_dir)]))
            for broker in brokers
        ]
        rng = random.Random(SEED)
        for side in sides:
            create_resources(side, [*operators(), *acls(random.Random(SEED), users(USERS), ACLS)])
        yield send_all_requests(rng, *sides)
        for side in sides:
            side.close()
    finally:
        for broker in brokers:
            broker.kill()


def create_resources(side: SecuredBroker, known: list[Acl]) -> None:
    """Create topics, groups with offsets, transactional ids and the ACLs of their users."""
    create = ApiKey.CREATE_TOPICS
    rows = [
        of(create, "Topic", name=each, num_partitions=2, replication_factor=1) for each in NAMES
    ]
    side.ask(ADMIN, create, 5, request(create, topics=rows, timeout_ms=10_000))
    rng, version = random.Random(SEED), {ApiKey.INIT_PRODUCER_ID: 4, ApiKey.OFFSET_COMMIT: 7}
    eventually(lambda: learn(side), "all topics")
    for kind in (0, 1):
        find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=[*NAMES], key_type=kind)
        eventually(
            lambda find=find: (
                not any(  # type: ignore[misc]
                    row.error_code
                    for row in side.ask(ADMIN, ApiKey.FIND_COORDINATOR, 4, find).coordinators
                )
            ),
            "coordinators",
        )
    share = request(ApiKey.FIND_COORDINATOR, coordinator_keys=[SHARE], key_type=2)
    eventually(
        lambda: not side.ask(ADMIN, ApiKey.FIND_COORDINATOR, 6, share).coordinators[0].error_code,
        "a coordinator of share partitions",
    )
    for key in (ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_COMMIT):
        for _ in range(10):
            message = BUILDERS[key](RequestContext(side.world, 0), rng, version[key])
            eventually(
                lambda key=key, message=message: (
                    not (  # type: ignore[misc]
                        error_codes_in(side.ask(ADMIN, key, version[key], message)) & {14, 15, 16}
                    )
                ),
                "a coordinator that has loaded",
            )
    open_transaction(side)
    create_tokens(side)
    message = request(ApiKey.CREATE_ACLS, creations=[creation_of(each) for each in known])
    assert not error_codes_in(side.ask(ADMIN, ApiKey.CREATE_ACLS, 3, message))
    everything = request(
        ApiKey.DESCRIBE_ACLS,
        resource_type_filter=1,
        pattern_type_filter=1,
        operation=1,
        permission_type=1,
    )
    eventually(
        lambda: (
            sum(
                len(row.acls)
                for row in side.ask(ADMIN, ApiKey.DESCRIBE_ACLS, 3, everything).resources
            )
            == len(known)
        ),
        "all ACLs",
    )


def open_transaction(side: SecuredBroker) -> None:
    """Leave a transaction open: DESCRIBE on its id does not imply DESCRIBE on all its topics."""
    init = request(
        ApiKey.INIT_PRODUCER_ID,
        transactional_id=OPEN,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    made = side.ask(ADMIN, ApiKey.INIT_PRODUCER_ID, 4, init)
    assert not made.error_code, made
    key = ApiKey.ADD_PARTITIONS_TO_TXN
    add = request(
        key,
        v3_and_below_transactional_id=OPEN,
        v3_and_below_producer_id=made.producer_id,
        v3_and_below_producer_epoch=made.producer_epoch,
        v3_and_below_topics=[of(key, "Topic", name=each, partitions=[0]) for each in NAMES],
    )
    assert not error_codes_in(side.ask(ADMIN, key, 3, add))


def create_tokens(side: SecuredBroker) -> None:
    """Create one delegation token per owner that ACLs name, with an operator as renewer."""
    key = ApiKey.CREATE_DELEGATION_TOKEN
    for name, operator in zip(NAMES, OPERATORS, strict=False):
        renewer = of(key, "Renewer", principal_type="User", principal_name=operator)
        owner = {"owner_principal_type": "User", "owner_principal_name": name}
        create = request(key, renewers=[renewer], max_lifetime_ms=-1, **owner)
        assert not error_codes_in(side.ask(ADMIN, key, 3, create))
    key = ApiKey.DESCRIBE_DELEGATION_TOKEN
    everything = request(key, owners=None)
    eventually(lambda: len(side.ask(ADMIN, key, 3, everything).tokens) == len(NAMES), "all tokens")


def learn(side: SecuredBroker) -> bool:
    answer = side.ask(ADMIN, ApiKey.METADATA, 12, request(ApiKey.METADATA, topics=None))
    side.world.learn(ApiKey.METADATA, answer)
    return set(NAMES) <= side.world.topic_ids.keys()


def eventually(holds: Any, what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, f"timed out after a minute: {what}"
        time.sleep(0.1)


def send_all_requests(rng: random.Random, mine: SecuredBroker, other: SecuredBroker) -> Outcome:
    """Send each version of each API as random users in random order."""
    served = other.served()
    versions_by_api = {
        key: range(max(versions[0], served[key][0]), min(versions[-1], served[key][-1]) + 1)
        for key, versions in mine.served().items()
        if key in served and key not in LOGIN_APIS
    }
    # Kafka advertises older versions but closes the connection on them (KAFKA-18659).
    versions_by_api[ApiKey.PRODUCE] = range(3, versions_by_api[ApiKey.PRODUCE][-1] + 1)
    assert not versions_by_api.keys() - BUILDERS.keys(), (
        "add builders for these APIs in harness/access_calls.py"
    )
    comparison = Comparison((*ACCESS_DIFFERENCES, *DIFFERENCES))
    outcome = Outcome(comparison, [], versions_by_api)
    everything = [
        (key, version, user)
        for key, versions in versions_by_api.items()
        for version in versions
        for user in rng.sample(users(USERS), USERS_PER_VERSION)
    ]
    everything += [
        (key, versions[-1], operator)
        for key, versions in versions_by_api.items()
        for operator in (*OPERATORS, *[OPERATOR] * OPERATOR_REQUESTS)
    ]
    rng.shuffle(everything)
    for number, (key, version, user) in enumerate(everything):
        seed = rng.random()
        call = f"access: {key.api_name} by {user} (request {number} of seed {SEED})"
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answers = [
                response_of(side, user, key, version, number, seed) for side in (mine, other)
            ]
            found = compared(comparison, call, key, version, *answers)
            if not found or key not in READ_ONLY_APIS or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        outcome.differences += found
        outcome.requests += 1
        codes = set() if answers[1] is None else error_codes_in(answers[1])
        if set(innermost_codes_in(answers[1])) - AUTHORIZATION_ERRORS:
            outcome.allowed.add(key)
        outcome.refused += bool(codes) and codes <= AUTHORIZATION_ERRORS
        outcome.partly += bool(codes & AUTHORIZATION_ERRORS) and not codes <= AUTHORIZATION_ERRORS
    return outcome


def response_of(
    side: SecuredBroker, user: str, key: ApiKey, version: int, number: int, seed: float
) -> Any:
    """Return the response, or None if the broker closed the connection."""
    message = BUILDERS[key](RequestContext(side.world, number), random.Random(seed), version)
    try:
        answer = side.ask(user, key, version, message)
    except NoAnswer:
        return None
    names = {value: name for name, value in side.world.topic_ids.items()}
    set_topic_names(answer, version, names)
    if key is ApiKey.METADATA:  # Sort rows that have only ids, to match them.
        answer.topics.sort(key=lambda row: (row.name or "", names.get(row.topic_id, "")))
    if key is ApiKey.DESCRIBE_DELEGATION_TOKEN:
        answer.tokens = [
            type(row)(
                **{
                    each.name: getattr(row, each.name)
                    for each in fields(type(row))
                    if each.name not in GENERATED_TOKEN_FIELDS
                }
            )
            for row in sorted(answer.tokens, key=lambda row: row.principal_name)
        ]
    if key is ApiKey.DESCRIBE_TRANSACTIONS:
        for row in answer.transaction_states:
            row.transaction_start_time_ms = -1  # The start times of the brokers differ.
    return renamed(answer, side.world.names(), {})


def set_topic_names(value: Any, version: int, names: Mapping[UUID, str]) -> None:
    """Set the names of rows that have only topic ids, so that rows can be matched."""
    for each in value if isinstance(value, list) else []:
        set_topic_names(each, version, names)
    if isinstance(value, Struct):
        present = {each.name: each.present(version) for each in fields(type(value))}
        if present.get("topic_id"):
            for name in {"name", "topic"} & present.keys():
                if not present[name]:
                    setattr(value, name, names.get(value.topic_id, "nowhere"))
        for part in present:
            set_topic_names(getattr(value, part), version, names)


def compared(
    comparison: Comparison, call: str, key: ApiKey, version: int, mine: Any, other: Any
) -> list[Difference]:
    if mine is None or other is None:
        return comparison.compare_presence(call, key, version, mine, other)
    return comparison.compare(call, key, version, mine, other)


def error_codes_in(value: Any) -> set[int]:
    """Return all error codes of a response."""
    if isinstance(value, list):
        return {code for each in value for code in error_codes_in(each)}
    if not isinstance(value, Struct):
        return set()
    found = set()
    for each in fields(type(value)):
        part = getattr(value, each.name)
        found |= {part} - {0} if each.name.endswith("error_code") else error_codes_in(part)
    return found


def innermost_codes_in(value: Any) -> list[int]:
    """Return the error codes of the innermost rows that have one (0 if none failed)."""
    if isinstance(value, list):
        return [code for each in value for code in innermost_codes_in(each)]
    if not isinstance(value, Struct):
        return []
    parts = {each.name: getattr(value, each.name) for each in fields(type(value))}
    inner = [code for part in parts.values() for code in innermost_codes_in(part)]
    return inner or [part for name, part in parts.items() if name.endswith("error_code")]


def test_all_users_get_same_responses_from_both_brokers(outcome: Outcome) -> None:
    """Check too that a substantial part of the requests was rejected and another part permitted."""
    print(
        f"figures: seed {SEED}, {USERS} users, {ACLS} ACLs, {outcome.requests} requests of "
        f"{len(outcome.versions_by_api)} APIs in {len(outcome.comparison.requested)} versions: "
        f"{outcome.refused} refused, {outcome.partly} in part; {outcome.comparison.values} values "
        f"compared, {len(outcome.differences)} differ"
    )
    assert not outcome.differences, "\n".join(map(str, outcome.differences[:100]))
    assert outcome.requests / 10 < outcome.refused < outcome.requests * 9 / 10
    assert outcome.partly
    assert outcome.allowed == outcome.versions_by_api.keys()
    for shown in (
        (ApiKey.DESCRIBE_DELEGATION_TOKEN, "tokens.order"),
        (ApiKey.DESCRIBE_TRANSACTIONS, "transaction_states.topics.order"),
    ):
        assert shown in outcome.comparison.seen, (
            "no response showed rows that only some users may describe"
        )


def test_every_api_version_was_requested(outcome: Outcome) -> None:
    every = {
        (key, version) for key, versions in outcome.versions_by_api.items() for version in versions
    }
    assert outcome.comparison.requested == every


def test_missing_acl_of_one_broker_is_reported() -> None:
    """One response permits what the other one rejects."""
    cls: Any = messages.response_class(ApiKey.METADATA)
    answers = [
        cls(topics=[cls.Topic(name="orders", error_code=code)])
        for code in (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    ]
    comparison = Comparison((*ACCESS_DIFFERENCES, *DIFFERENCES))
    found = comparison.compare("access: planted", ApiKey.METADATA, 12, *answers)
    assert [each.place for each in found] == ["topics[orders].error_code"]
