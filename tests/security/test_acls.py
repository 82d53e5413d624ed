"""ACL decisions, compared with a model that checks all ACLs one by one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from kbroker.security import acls as acls_module
from kbroker.security.acls import (
    CLUSTER,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Acls,
    AuthorizerSettings,
    Client,
    Pattern,
    PatternType,
    Resource,
    decide,
    decide_any,
)
from kbroker.security.authorizer import DECISIONS_MAX, Authorizer
from kbroker.security.principals import Principal

TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
READ, WRITE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.ALL
DESCRIBE = AclOperation.DESCRIBE
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
WORLDS, QUESTIONS = 100, 1000
NAMES = ("a", "ab", "abc", "abd", "b", "orders", "orders-eu", "*")
PRINCIPALS = ("alice", "bob", "ANONYMOUS")
HOSTS = ("10.0.0.1", "10.0.0.2")
NO_RULES = AuthorizerSettings()


def client(name: str = "alice", host: str = "10.0.0.1") -> Client:
    return Client(Principal("User", name), host)


def acl(
    operation: AclOperation = READ,
    permission: AclPermission = ALLOW,
    *,
    kind: AclResourceType = TOPIC,
    pattern: PatternType = LITERAL,
    name: str = "orders",
    principal: str = "User:alice",
    host: str = "*",
) -> Acl:
    return Acl(Pattern(kind, pattern, name), principal, host, operation, permission)


def book(*acls: Acl) -> Acls:
    made = Acls()
    for number, each in enumerate(acls):
        made.put(str(number), each)
    return made


def model_allows(
    acls: Iterable[Acl],
    rules: AuthorizerSettings,
    client_: Client,
    operation: AclOperation,
    resource: Resource,
) -> bool:
    """Decide as the documentation of StandardAuthorizer describes, without an index."""
    if f"User:{client_.principal.name}" in rules.super_users:
        return True
    matching = []
    for each in acls:
        pattern = each.pattern
        if pattern.resource_type != resource.type:
            continue
        if pattern.type == LITERAL and pattern.name not in (resource.name, "*"):
            continue
        if pattern.type == PREFIXED and not resource.name.startswith(pattern.name):
            continue
        matching.append(each)
    mine = [
        each
        for each in matching
        if each.principal in ("User:*", f"User:{client_.principal.name}")
        and each.host in ("*", client_.host)
    ]
    if any(each.permission == DENY and each.operation in (operation, ALL) for each in mine):
        return False
    enough = {operation, ALL}
    if operation == DESCRIBE:
        enough |= {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER}
    if operation == AclOperation.DESCRIBE_CONFIGS:
        enough |= {AclOperation.ALTER_CONFIGS}
    if any(each.permission == ALLOW and each.operation in enough for each in mine):
        return True
    return rules.allows_without_acls and not matching


def random_acl(rng: random.Random) -> Acl:
    return acl(
        AclOperation(rng.randrange(2, 16)),
        rng.choice((ALLOW, ALLOW, DENY)),
        kind=rng.choice((TOPIC, GROUP)),
        pattern=rng.choice((LITERAL, PREFIXED)),
        name=rng.choice(NAMES),
        principal=rng.choice(("User:*", *(f"User:{each}" for each in PRINCIPALS))),
        host=rng.choice(("*", "*", *HOSTS)),
    )


@pytest.mark.slow
def test_random_decisions_match_model() -> None:
    """ACLs change between decisions, and cached decisions must not persist (CVE-2024-27309)."""
    answers, known_before = {True: 0, False: 0}, 0
    for seed in range(WORLDS):
        rng = random.Random(seed)
        known = {str(key): random_acl(rng) for key in range(rng.randrange(12))}
        rules = AuthorizerSettings(frozenset(["User:root"]), allows_without_acls=rng.random() < 0.5)
        acls = book()
        for key, each in known.items():
            acls.put(key, each)
        authorizer = Authorizer(acls, rules)
        for _ in range(QUESTIONS):
            if rng.random() < 0.05:
                key = str(rng.randrange(12))
                if known.pop(key, None) is None:
                    known[key] = random_acl(rng)
                    acls.put(key, known[key])
                else:
                    acls.drop(key)
            client_ = client(rng.choice((*PRINCIPALS, "root")), rng.choice(HOSTS))
            resource = Resource(rng.choice((TOPIC, GROUP)), rng.choice(NAMES[:-1]))
            operation = AclOperation(rng.randrange(3, 16))
            expected = model_allows(known.values(), rules, client_, operation, resource)
            if resource.type is TOPIC and authorizer.has_allowed(client_, operation, resource.name):
                assert expected, (seed, client_, resource, operation)
                known_before += 1
            assert authorizer.allows(client_, operation, resource) is expected, (
                seed,
                client_,
                resource,
                operation,
            )
            verdict = authorizer.verdict(client_, operation, resource)
            assert verdict.allowed is expected
            answers[expected] += 1
    assert min(answers.values()) > WORLDS * QUESTIONS / 10
    assert known_before > 100


@pytest.mark.parametrize(
    ("acls", "operation", "allowed"),
    [
        ([], READ, False),
        ([acl(READ)], READ, True),
        ([acl(READ)], WRITE, False),
        ([acl(READ)], DESCRIBE, True),
        ([acl(READ, DENY), acl(WRITE)], DESCRIBE, True),
        ([acl(DESCRIBE, DENY), acl(WRITE)], DESCRIBE, False),
        ([acl(DESCRIBE, DENY), acl(WRITE)], WRITE, True),
        ([acl(ALL)], AclOperation.ALTER_CONFIGS, True),
        ([acl(AclOperation.ALTER_CONFIGS)], AclOperation.DESCRIBE_CONFIGS, True),
        ([acl(ALL), acl(ALL, DENY, name="*")], READ, False),
        ([acl(ALL, name="ord", pattern=PREFIXED)], READ, True),
        ([acl(ALL, name="ord", pattern=LITERAL)], READ, False),
        ([acl(ALL, name="orders-eu", pattern=PREFIXED)], READ, False),
        ([acl(READ, principal="User:*")], READ, True),
        ([acl(READ, principal="User:bob")], READ, False),
        ([acl(READ, principal="Group:alice")], READ, False),
        ([acl(READ, host="10.0.0.2")], READ, False),
        ([acl(READ, host="10.0.0.1")], READ, True),
        ([acl(READ, host="10.0.0.0/24")], READ, True),
        ([acl(READ, host="10.0.0.99/24")], READ, True),
        ([acl(READ, host="10.0.1.0/24")], READ, False),
        ([acl(READ, host="0.0.0.0/0")], READ, True),
        ([acl(READ, host="::/0")], READ, False),
        ([acl(ALL), acl(ALL, DENY, host="10.0.0.0/8")], READ, False),
        ([acl(READ, kind=GROUP)], READ, False),
    ],
)
def test_single_acl_decides_as_expected(
    acls: Sequence[Acl], operation: AclOperation, allowed: bool
) -> None:
    resource = Resource(TOPIC, "orders")
    assert decide(book(*acls), NO_RULES, client(), operation, resource).allowed is allowed


def test_network_of_acl_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    acls = book(acl(READ, host="10.0.0.0/24"))
    monkeypatch.delattr(acls_module, "parse_network")
    assert decide(acls, NO_RULES, client(), READ, Resource(TOPIC, "orders")).allowed
    assert decide_any(acls, NO_RULES, client(), READ, TOPIC)


def test_allow_everyone_applies_only_to_resources_without_acls() -> None:
    """ACLs for other principals count as ACLs of the resource (KAFKA-14435)."""
    open_to_all = AuthorizerSettings(allows_without_acls=True)
    acls = book(acl(READ, principal="User:bob", name="ord", pattern=PREFIXED))
    assert not decide(acls, open_to_all, client(), READ, Resource(TOPIC, "orders")).allowed
    assert decide(acls, open_to_all, client(), READ, Resource(TOPIC, "other")).allowed
    assert not decide(acls, NO_RULES, client(), READ, Resource(TOPIC, "other")).allowed


def test_super_users_are_parsed_and_bypass_acls() -> None:
    rules = AuthorizerSettings.read(" User:root ;User:CN=a,O=b; ", allows_without_acls=False)
    assert rules.super_users == {"User:root", "User:CN=a,O=b"}
    denied = book(acl(ALL, DENY, name="*", principal="User:*"))
    assert decide(denied, rules, client("root"), READ, Resource(TOPIC, "orders")).allowed


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl(WRITE)], True),
        ([acl(READ)], False),
        ([acl(WRITE, principal="User:bob")], False),
        ([acl(WRITE), acl(WRITE, DENY)], False),
        ([acl(WRITE), acl(WRITE, DENY, name="ord", pattern=PREFIXED)], False),
        ([acl(WRITE, pattern=PREFIXED), acl(WRITE, DENY)], True),
        ([acl(WRITE, name="*"), acl(WRITE, DENY)], True),
        ([acl(WRITE, name="*"), acl(ALL, DENY, name="*")], False),
        ([acl(WRITE), acl(ALL, DENY, name="*")], False),
        ([acl(WRITE, kind=GROUP)], False),
    ],
)
def test_decide_any_considers_prefixes_and_denials(acls: Sequence[Acl], allowed: bool) -> None:
    assert decide_any(book(*acls), NO_RULES, client(), WRITE, TOPIC) is allowed


def test_verdict_text_names_deciding_rule() -> None:
    resource = Resource(TOPIC, "orders")
    acls = book(acl(READ), acl(WRITE, DENY, principal="User:*"))
    rules = AuthorizerSettings(frozenset(["User:root"]))
    texts = {
        str(decide(acls, rules, client_, operation, resource))
        for client_, operation in (
            (client(), READ),
            (client(), WRITE),
            (client("bob"), READ),
            (client("root"), READ),
        )
    }
    assert texts == {
        "ALLOW User:alice READ on topic orders from *",
        "DENY User:* WRITE on topic orders from *",
        "no ACL of the resource allows it",
        "a super user",
    }
    assert str(decide(acls, rules, client(), READ, CLUSTER)) == "the resource has no ACL"


def test_decision_cache_is_bounded() -> None:
    authorizer = Authorizer(book(acl(READ, name="t", pattern=PREFIXED)), NO_RULES)
    for number in range(2 * DECISIONS_MAX - 1):
        assert authorizer.allows(client(), READ, Resource(TOPIC, f"t{number}"))
    assert len(authorizer._topics) <= len(authorizer._decisions) <= DECISIONS_MAX
    before = len(authorizer._decisions)
    assert not authorizer.allows(client(), READ, Resource(TOPIC, "x" * 10_000))
    assert len(authorizer._decisions) == before


ANY = AclFilter(
    AclResourceType.ANY, None, PatternType.ANY, None, None, AclOperation.ANY, AclPermission.ANY
)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (ANY, 4),
        (ANY._replace(resource_type=GROUP), 1),
        (ANY._replace(name="orders"), 2),
        (ANY._replace(name="orders", pattern_type=PatternType.MATCH), 4),
        (ANY._replace(name="orders", pattern_type=PatternType.MATCH, resource_type=TOPIC), 3),
        (ANY._replace(name="other", pattern_type=PatternType.MATCH), 1),
        (ANY._replace(pattern_type=PREFIXED), 1),
        (ANY._replace(principal="User:bob"), 1),
        (ANY._replace(host="10.0.0.1"), 1),
        (ANY._replace(operation=WRITE), 1),
        (ANY._replace(permission=DENY), 1),
    ],
)
def test_filter_matches_expected_acls(wanted: AclFilter, count: int) -> None:
    acls = [
        acl(WRITE, DENY),
        acl(name="ord", pattern=PREFIXED, principal="User:bob"),
        acl(name="*"),
        acl(kind=GROUP, host="10.0.0.1"),
    ]
    assert sum(wanted.matches(each) for each in acls) == count
