import pytest
from fastapi.testclient import TestClient
from signups import create_app

TOPICS = {"signups": 2, "mails": 1, "signups.dead": 1}

pytestmark = pytest.mark.kbroker(topics=TOPICS)


@pytest.fixture
def web(kbroker):
    """The service; it finds the broker in KAFKA_BOOTSTRAP_SERVERS, as pytest.ini asks for."""
    with TestClient(create_app()) as client:
        yield client


def sign_up(web, *names):
    for name in names:
        answer = web.post("/signups", json={"name": name, "address": f"{name}@example.com"})
        assert answer.status_code == 202


def welcomed(kbroker):
    return [mail.json["text"] for mail in kbroker.records("mails")]


def test_who_signs_up_gets_a_mail(kbroker, web):
    sign_up(web, "ann")
    mail = kbroker.expect("mails").key("ann@example.com").within("10s")
    assert mail.json == {"to": "ann@example.com", "text": "Welcome, ann!"}


def test_nobody_is_forgotten_when_the_broker_restarts_in_mid_work(kbroker, web):
    sign_up(web, "ann", "bob")
    kbroker.wait_for("mails")
    kbroker.restart()
    sign_up(web, "cid")
    kbroker.wait_for_lag("welcome", 0)
    assert set(welcomed(kbroker)) == {"Welcome, ann!", "Welcome, bob!", "Welcome, cid!"}


def test_a_broker_that_refuses_is_told_to_the_visitor(kbroker, web):
    kbroker.fault("Produce", topic="signups", error="POLICY_VIOLATION")
    answer = web.post("/signups", json={"name": "ann", "address": "ann@example.com"})
    assert answer.status_code == 503
    assert kbroker.records("signups") == []


def test_an_acknowledgement_that_is_lost_makes_no_second_sign_up(kbroker, web):
    """The sign-up is written, but the producer cannot know that: it sends it again."""
    kbroker.fault("Produce", topic="signups", at="after").disconnect()
    sign_up(web, "ann")
    assert len(kbroker.records("signups")) == 1


def test_a_sign_up_that_is_delivered_twice_makes_the_same_mail_again(kbroker, web):
    kbroker.fault("OffsetCommit", error="REBALANCE_IN_PROGRESS", group="welcome")
    sign_up(web, "ann")
    first, second = kbroker.wait_for("mails", count=2)
    assert (first.key, first.value) == (second.key, second.value)


def test_a_second_instance_takes_half_of_the_work(kbroker, web):
    sign_up(web, "ann", "bob")
    kbroker.wait_for("mails")
    with TestClient(create_app()) as other:
        group = kbroker.wait_for_group("welcome", members=2)
        sign_up(web, "cid")
        sign_up(other, "dan")
        kbroker.wait_for_lag("welcome", 0)
    assert [len(member.partitions) for member in group.members] == [1, 1]
    assert {f"Welcome, {name}!" for name in ("ann", "bob", "cid", "dan")} == set(welcomed(kbroker))


def test_what_is_no_sign_up_is_put_aside(kbroker, web):
    kbroker.produce("signups", "not JSON", key="a", partition=0)
    kbroker.produce("signups", {"name": "no address"}, key="b", partition=0)
    kbroker.produce("signups", {"name": "ann", "address": "a@b.c"}, key="c", partition=0)
    kbroker.expect("mails").key("c").within("10s")
    assert [record.key for record in kbroker.records("signups.dead")] == [b"a", b"b"]


@pytest.mark.kbroker(topics={"signups": 1}, config={"log.retention.hours": "24"})
def test_sign_ups_that_expired_unread_do_not_stop_the_service(kbroker):
    """Where the group wants to go on there is nothing any more: it goes on with what is left."""
    with TestClient(create_app()) as web:
        sign_up(web, "ann")
        kbroker.wait_for_lag("welcome", 0)
    kbroker.produce("signups", {"name": "bob", "address": "b@example.com"})
    kbroker.clock.advance(hours=25)
    kbroker.produce("signups", {"name": "cid", "address": "c@example.com"}, key="c")
    with TestClient(create_app()):
        kbroker.expect("mails").key("c").within("10s")
    assert "Welcome, bob!" not in welcomed(kbroker)
