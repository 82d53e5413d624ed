import pytest
from fastapi.testclient import TestClient
from signups import create_app

TOPICS = {"signups": 2, "mails": 1, "signups.dead": 1}

pytestmark = pytest.mark.kbroker(topics=TOPICS)


@pytest.fixture
def web(kbroker):
    """Return a client of the service, which reads the broker's address from the environment."""
    with TestClient(create_app()) as client:
        yield client


def sign_up(web, *names):
    for name in names:
        response = web.post("/signups", json={"name": name, "address": f"{name}@example.com"})
        assert response.status_code == 202


def welcomed(kbroker):
    return [mail.json["text"] for mail in kbroker.records("mails")]


def test_signup_produces_mail(kbroker, web):
    sign_up(web, "ann")
    mail = kbroker.expect("mails").key("ann@example.com").within("10s")
    assert mail.json == {"to": "ann@example.com", "text": "Welcome, ann!"}


def test_broker_restart_loses_no_signup(kbroker, web):
    sign_up(web, "ann", "bob")
    kbroker.wait_for("mails")
    kbroker.restart()
    sign_up(web, "cid")
    kbroker.wait_for_lag("welcome", 0)
    assert set(welcomed(kbroker)) == {"Welcome, ann!", "Welcome, bob!", "Welcome, cid!"}


def test_rejected_signup_returns_503(kbroker, web):
    kbroker.fault("Produce", topic="signups", error="POLICY_VIOLATION")
    response = web.post("/signups", json={"name": "ann", "address": "ann@example.com"})
    assert response.status_code == 503
    assert kbroker.records("signups") == []


def test_lost_acknowledgement_produces_no_second_signup(kbroker, web):
    """The sign-up is written, but its acknowledgement is lost, so the producer sends it again."""
    kbroker.fault("Produce", topic="signups", at="after").disconnect()
    sign_up(web, "ann")
    assert len(kbroker.records("signups")) == 1


def test_redelivered_signup_produces_same_mail(kbroker, web):
    kbroker.fault("OffsetCommit", error="REBALANCE_IN_PROGRESS", group="welcome")
    sign_up(web, "ann")
    first, second = kbroker.wait_for("mails", count=2)
    assert (first.key, first.value) == (second.key, second.value)


def test_second_instance_takes_half_of_the_partitions(kbroker, web):
    sign_up(web, "ann", "bob")
    kbroker.wait_for("mails")
    with TestClient(create_app()) as other:
        group = kbroker.wait_for_group("welcome", members=2)
        sign_up(web, "cid")
        sign_up(other, "dan")
        kbroker.wait_for_lag("welcome", 0)
    assert [len(member.partitions) for member in group.members] == [1, 1]
    assert {f"Welcome, {name}!" for name in ("ann", "bob", "cid", "dan")} == set(welcomed(kbroker))


def test_invalid_signups_are_rejected(kbroker, web):
    kbroker.produce("signups", "not JSON", key="a", partition=0)
    kbroker.produce("signups", {"name": "no address"}, key="b", partition=0)
    kbroker.produce("signups", {"name": "ann", "address": "a@b.c"}, key="c", partition=0)
    kbroker.expect("mails").key("c").within("10s")
    assert [record.key for record in kbroker.records("signups.dead")] == [b"a", b"b"]


@pytest.mark.kbroker(topics={"signups": 1}, config={"log.retention.hours": "24"})
def test_service_continues_after_signups_expired_unread(kbroker):
    """The committed offset no longer exists: the service continues with the remaining sign-ups."""
    with TestClient(create_app()) as web:
        sign_up(web, "ann")
        kbroker.wait_for_lag("welcome", 0)
    kbroker.produce("signups", {"name": "bob", "address": "b@example.com"})
    kbroker.clock.advance(hours=25)
    kbroker.produce("signups", {"name": "cid", "address": "c@example.com"}, key="c")
    with TestClient(create_app()):
        kbroker.expect("mails").key("c").within("10s")
    assert "Welcome, bob!" not in welcomed(kbroker)
