"""The metadata store on a real etcd: the store contract, and faults of etcd and its network."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import memory_stream_pair

from kbroker.cluster.etcd import EtcdAddress, connected
from kbroker.cluster.etcd_gateway import Gateway, Login, Message
from kbroker.cluster.etcd_store import EtcdStore
from kbroker.cluster.store import ABSENT, OutcomeUnknown
from kbroker.runtime.http_client import HttpConnection
from kbroker.storage.errors import StorageError

from ..wire import until
from .contract import CHECKS, Copy, World, must_put, put
from .etcd import Certificates, Etcd, network_to

pytestmark = pytest.mark.slow

CHECK_SECONDS_MAX = 120
# Timeout for changes that the client detects by checks instead of events.
WAIT_SECONDS = 60
# Response timeouts: normal, and for tests that lose a response.
PATIENT_SECONDS, IMPATIENT_SECONDS = 30, 2


class ForgetsSoon(EtcdStore):
    HISTORY_ENTRIES = 10
    PAGE_KEYS = 3


class Counting(Gateway):
    """A gateway that counts reads, and writes without compares."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        super().__init__(endpoints, timeout_seconds=PATIENT_SECONDS)
        self.reads = self.beats = 0

    async def ask(self, path: str, message: Message, *, changes: bool = False) -> Message:
        self.reads += path == "kv/range"
        if path == "kv/txn" and "compare" not in message:
            self.beats += "request_put" in message["success"][0]
        return await super().ask(path, message, changes=changes)


class Late(EtcdStore):
    """A store whose events are held until `hear` is called."""

    def __init__(self, gateway: Gateway, prefix: str) -> None:
        super().__init__(gateway, prefix)
        self.waits = False
        self.kept: list[Message] = []

    def _apply_events(self, events: Iterable[Message]) -> None:
        if self.waits:
            self.kept += events
        else:
            super()._apply_events(events)

    def hear(self) -> None:
        self.waits = False
        self._apply_events(self.kept)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """Run one etcd member for all tests."""
    member = Etcd(tmp_path_factory.mktemp("etcd"))
    yield member
    member.stop()


@asynccontextmanager
async def store_at(
    endpoints: Sequence[str],
    prefix: str,
    *,
    login: Login | None = None,
    timeout_seconds: float = PATIENT_SECONDS,
) -> AsyncIterator[EtcdStore]:
    """Run a store."""
    gateway = Gateway(endpoints, timeout_seconds=timeout_seconds, login=login)
    store = ForgetsSoon(gateway, f"/kb/{prefix}/")
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run)
            yield store
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


@pytest.mark.parametrize("name", CHECKS)
async def test_etcd_store_fulfils_contract(name: str, etcd: Etcd) -> None:
    stores: list[EtcdStore] = []
    with trio.fail_after(CHECK_SECONDS_MAX):
        async with trio.open_nursery() as nursery:

            def client() -> EtcdStore:
                gateway = Gateway(etcd.endpoints, timeout_seconds=PATIENT_SECONDS)
                store = ForgetsSoon(gateway, f"/kb/{name}/")
                stores.append(store)
                nursery.start_soon(store.run)
                return store

            await CHECKS[name](World(client, etcd.compact))
            nursery.cancel_scope.cancel()
    for store in stores:
        await store.aclose()


async def test_clusters_on_one_etcd_are_isolated(etcd: Etcd) -> None:
    """One cluster name may be a prefix of another one; all clusters share the revisions of etcd."""
    async with store_at(etcd.endpoints, "a") as one, store_at(etcd.endpoints, "a/b") as other:
        await must_put(one, "key", 1)
        theirs = await must_put(other, "key", 2)
        for _ in range(3):
            await must_put(
                other, "more", 1, (await other.range("more")).entries.get("more", (0, 0))[1]
            )
        assert await put(one, "key", 3, ABSENT) is None  # the revision belongs to the other cluster
        assert (await one.range("")).entries["key"].value == {"n": 1}
        assert (await other.range("")).entries["key"] == ({"n": 2}, theirs)


async def test_lost_response_raises_outcome_unknown(etcd: Etcd) -> None:
    """The client does not retry: the change is applied once and delivered by the watch."""
    async with (
        network_to(etcd.endpoints[0]) as network,
        store_at([network.endpoint], "lost", timeout_seconds=IMPATIENT_SECONDS) as store,
    ):
        copy = await Copy(store).open()
        await must_put(store, "a", 1)
        network.drop_answers()
        with pytest.raises(OutcomeUnknown):
            await put(store, "b", 2)
        await until(lambda: "b" in copy.entries, WAIT_SECONDS)
        assert [set(change.entries) for change in copy.changes] == [{"a"}, {"b"}]
        assert await put(store, "b", 3) is None


async def test_stalled_watch_is_restarted(etcd: Etcd) -> None:
    async with (
        network_to(etcd.endpoints[0]) as network,
        store_at([network.endpoint], "silent", timeout_seconds=IMPATIENT_SECONDS) as store,
        store_at(etcd.endpoints, "silent") as other,
    ):
        copy = await Copy(store).open()
        await must_put(store, "a", 1)
        lease = await other.grant(60, holder="node 2")
        await other.transact({"live": {}}, compares={}, cause="up", lease=lease)
        await until(lambda: "live" in copy.entries, WAIT_SECONDS)
        network.drop_answers()
        newest = await must_put(other, "b", 2)
        await copy.wait_for_revision(newest)
        network.drop_answers()
        await lease.revoke()
        await until(lambda: "live" not in copy.entries, WAIT_SECONDS)
        assert copy.changes[-1].cause == "lease of node 2 ended"


async def test_client_catches_up_after_compaction(etcd: Etcd) -> None:
    """The client gets deletions first, including those of recreated keys, then new entries."""
    async with (
        network_to(etcd.endpoints[0]) as network,
        store_at([network.endpoint], "away") as store,
        store_at(etcd.endpoints, "away") as other,
    ):
        stays = await must_put(other, "stays", 0)
        created_at = await must_put(other, "gone", 0)
        first_created_at = await must_put(other, "recreated", 0)
        await must_put(store, "changed", 0)
        copy = await Copy(store).open()
        await network.cut()
        await must_put(other, "gone", None, created_at)
        await must_put(other, "recreated", None, first_created_at)
        recreated_at = await must_put(other, "recreated", 1)
        changed = (await other.range("changed")).entries["changed"].revision
        for number in range(1, 21):
            changed = await must_put(other, "changed", number, changed)
        etcd.compact(keep=0)
        network.heal()
        await copy.wait_for_revision(changed)
        first, second = copy.changes
        assert first.entries == {"gone": None, "recreated": None}
        assert second.entries == {
            "recreated": ({"n": 1}, recreated_at),
            "changed": ({"n": 20}, changed),
        }
        assert copy.entries.keys() == {"stays", "recreated", "changed"}
        assert copy.entries["stays"].revision == stays
        await must_put(store, "after", 1)
        assert "after" in copy.entries


async def test_comparison_finds_lost_event(etcd: Etcd, caplog: pytest.LogCaptureFixture) -> None:
    async with store_at(etcd.endpoints, "compared") as store:
        copy = await Copy(store).open()
        kept = await must_put(store, "kept", 1)
        await must_put(store, "lost", 1)
        await store._compare_all()
        assert not caplog.records
        del store._held["entry/lost"], copy.entries["lost"]
        store._held["entry/ghost"] = store._held["entry/kept"]
        copy.entries["ghost"] = copy.entries["kept"]
        await store._compare_all()
        assert "missed 2 keys" in caplog.text
        await until(lambda: "lost" in copy.entries, WAIT_SECONDS)
        assert copy.entries.keys() == {"kept", "lost"}
        assert copy.entries["kept"].revision == kept


async def test_store_resumes_after_loss_of_quorum(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Writes fail with a log message until the quorum is restored."""
    etcd = Etcd(tmp_path, members=3)
    try:
        async with store_at(etcd.endpoints, "a", timeout_seconds=IMPATIENT_SECONDS) as store:
            copy = await Copy(store).open()
            first = await must_put(store, "a", 1)
            etcd.kill(0)
            second = None
            with trio.fail_after(WAIT_SECONDS):
                while second is None:
                    try:
                        second = await put(store, "a", 2, first)
                    except OutcomeUnknown:  # while members elect a leader
                        first = (await _read_again(store, "a")).revision
            etcd.pause(1)
            with pytest.raises(StorageError), trio.fail_after(WAIT_SECONDS):
                await put(store, "b", 1)
            assert "metadata: " in caplog.text
            etcd.restart(0)
            with trio.fail_after(WAIT_SECONDS):
                while True:
                    try:
                        await put(store, "c", 1)
                        break
                    except StorageError:
                        await trio.sleep(0.1)
                await until(lambda: "c" in copy.entries, WAIT_SECONDS)
            assert copy.entries["a"].value == {"n": 2}
    finally:
        etcd.stop()


async def _read_again(store: EtcdStore, key: str):  # type: ignore[no-untyped-def]
    while True:
        try:
            return (await store.range(key)).entries[key]
        except StorageError:
            await trio.sleep(0.1)


async def test_keys_are_read_once_in_pages(etcd: Etcd) -> None:
    async with store_at(etcd.endpoints, "pages") as store:
        for number in range(10):
            await must_put(store, f"key-{number}", number)
        gateway = Counting(etcd.endpoints)
        other = ForgetsSoon(gateway, "/kb/pages/")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.run)
            revision, entries = await other.range("")
            assert [each.value["n"] for each in entries.values()] == [*range(10)]
            assert revision == store.revision
            assert await other.range("key-3") == (revision, {"key-3": entries["key-3"]})
            assert gateway.reads == 4  # 10 keys and the cause, in pages of three
            nursery.cancel_scope.cancel()
        await other.aclose()


async def test_waiters_for_slow_watch_share_heartbeats(
    etcd: Etcd,
) -> None:
    gateway = Counting(etcd.endpoints)
    store = Late(gateway, "/kb/late/")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        await must_put(store, "first", 1)
        store.waits = True
        async with trio.open_nursery() as writers:
            for number in range(30):
                writers.start_soon(must_put, store, f"key-{number}", number)
            await until(lambda: gateway.beats > 2, WAIT_SECONDS)
            assert gateway.beats < 10
            store.hear()
        nursery.cancel_scope.cancel()
    await store.aclose()


async def test_etcd_user_authenticates_and_renews_token(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path)
    try:
        whole_range = {"key": b64encode(b"\0").decode(), "range_end": b64encode(b"\0").decode()}
        etcd.ask("auth/user/add", {"name": "root", "password": "secret"})
        etcd.ask("auth/role/add", {"name": "root"})
        etcd.ask("auth/user/grant", {"user": "root", "role": "root"})
        etcd.ask(
            "auth/role/grant", {"name": "root", "perm": {"permType": "READWRITE", **whole_range}}
        )
        etcd.ask("auth/enable", {})
        wrong = Gateway(etcd.endpoints, login=Login("root", "wrong"))
        with pytest.raises(StorageError, match="authentication failed"):
            await wrong.ask("kv/range", {"key": "YQ=="})
        await wrong.aclose()
        async with store_at(etcd.endpoints, "a", login=Login("root", "secret")) as store:
            with trio.fail_after(WAIT_SECONDS):
                first = await must_put(store, "a", 1)
                store._gateway._token = "it is too old"
                await must_put(store, "a", 2, first)
    finally:
        etcd.stop()


async def test_mutual_tls_with_etcd_works(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    etcd = Etcd(tmp_path, certificates=certificates)
    member = etcd.endpoints[0].removeprefix("https://")
    cert, key = certificates.client
    try:
        address = f"etcds://{member}/shop?ca={certificates.ca}&cert={cert}&key={key}"
        async with connected(EtcdAddress.parse(address)) as store:
            assert await put(store, "a", 1) is not None
        for options, reason in (
            (f"cert={cert}&key={key}", "CERTIFICATE_VERIFY_FAILED"),
            (f"ca={certificates.ca}", "cannot read the cluster metadata"),
        ):
            message = await refusal_of(f"etcds://{member}/shop?{options}")
            assert reason in message
    finally:
        etcd.stop()


async def refusal_of(address: str) -> str:
    """Return the error of a failed connection to a cluster."""
    with pytest.raises(ExceptionGroup) as raised:
        async with connected(EtcdAddress.parse(address), patience_seconds=IMPATIENT_SECONDS):
            pass
    (error,) = raised.value.exceptions
    assert isinstance(error, StorageError)
    return error.message or ""


async def test_watch_cancelled_before_start_closes_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = memory_stream_pair()  # a stream without responses

    async def connects(*_: object) -> HttpConnection:
        return HttpConnection(ours, "etcd")

    monkeypatch.setattr("kbroker.cluster.etcd_gateway.connect", connects)
    gateway = Gateway(["http://etcd:2379"], timeout_seconds=PATIENT_SECONDS)
    with trio.move_on_after(0.1):
        async with gateway.stream("watch", {}):
            raise AssertionError("nobody has answered")
    with trio.fail_after(5):
        assert await theirs.receive_some()  # the request
        assert await theirs.receive_some() == b""


@pytest.mark.parametrize(
    ("shift", "expected"), [(100, r"10[01] s ahead"), (-100, r"(99|100) s behind"), (0, "")]
)
async def test_clock_skew_is_logged(
    etcd: Etcd,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    shift: int,
    expected: str,
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + shift)
    member = etcd.endpoints[0].removeprefix("http://")
    async with connected(EtcdAddress.parse(f"etcd://{member}/clocks")):
        pass
    warnings = [each.getMessage() for each in caplog.records if "clock" in each.getMessage()]
    assert len(warnings) == bool(shift)
    assert re.search(expected, "".join(warnings))


async def test_foreign_value_below_prefix_is_rejected(
    etcd: Etcd, caplog: pytest.LogCaptureFixture
) -> None:
    key = b64encode(b"/kb/theirs/entry/a").decode()
    etcd.ask("kv/put", {"key": key, "value": b64encode(b"no JSON").decode()})
    async with store_at(etcd.endpoints, "theirs"):
        await until(lambda: "use another name for the cluster" in caplog.text, WAIT_SECONDS)


async def test_next_member_is_used_if_one_refuses_connections(etcd: Etcd) -> None:
    nobody = "http://127.0.0.1:1"
    async with store_at([nobody, *etcd.endpoints], "next") as store:
        with trio.fail_after(WAIT_SECONDS):
            assert await put(store, "a", 1) is not None
