"""Tests of the memory for large requests, which all clients share."""

from __future__ import annotations

import trio
import trio.lowlevel
import trio.testing

from kbroker.node.request_memory import CHECK_SECONDS, SHARE_BEYOND, Claim, RequestMemory


class Claims:
    """Claims of requests in a RequestMemory, without connections."""

    def __init__(self, limit: int = 1000) -> None:
        self.memory = RequestMemory(limit)
        self.aborted: list[str] = []

    def claim(self, held: int, left: int, host: str = "a") -> Claim:
        claim = Claim(self.memory, host, lambda: self.aborted.append(host))
        claim.count(held, left)
        return claim


async def test_waiting_claims_continue_one_at_a_time(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """A claim of an address that holds less memory continues first, then the oldest claim."""
    claims = Claims()
    holder = claims.claim(1200, 500)
    waiting = [claims.claim(100, left, host) for left, host in ((900, "a"), (500, "a"), (900, "b"))]
    for each in waiting[:2]:
        assert not each.may_continue
        nursery.start_soon(each.wait)
        await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(waiting[2].wait)
    await trio.testing.wait_all_tasks_blocked()
    assert [each.may_continue for each in waiting] == [True, False, False]
    waiting[0].release()
    assert [each.may_continue for each in waiting[1:]] == [False, True]
    holder.release()
    assert waiting[1].may_continue


async def test_nearly_complete_claims_continue(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Such claims may use a share of the limit. The claim that always continues does not count."""
    claims = Claims()
    claims.claim(1200, 500)
    few = int(1000 * SHARE_BEYOND) // 2
    waiting = [claims.claim(100, left) for left in (900, few, 900, few, few)]
    for each in waiting:
        nursery.start_soon(each.wait)
        await trio.testing.wait_all_tasks_blocked()
    assert [each.may_continue for each in waiting] == [True, True, False, True, False]
    nursery.cancel_scope.cancel()


async def test_address_is_limited_while_others_claim_memory(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    claims = Claims()
    assert claims.claim(900, 500).may_continue  # no other address has claims
    assert claims.claim(50, 500, "b").may_continue
    assert not claims.claim(10, 500).may_continue
    assert claims.claim(10, 500, "c").may_continue


async def test_closed_connection_without_received_bytes_lets_others_continue(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The connection closes after the length of a request, which was allowed to continue."""
    claims = Claims()
    waiting = [claims.claim(700, 500, host) for host in "ab"]
    empty = claims.claim(0, 900, "c")
    with trio.move_on_after(1):
        await empty.wait()
    empty.end()
    for each in waiting:
        nursery.start_soon(each.wait)
        await trio.testing.wait_all_tasks_blocked()
    assert any(each.may_continue for each in waiting)
    nursery.cancel_scope.cancel()


async def test_only_stalled_claims_that_may_continue_are_aborted(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    limit = 1 << 20
    claims = Claims(limit)
    claims.claim(limit, 1, "slow")
    claims.claim(100, 0, "complete")
    quick = claims.claim(100, limit, "quick")
    for host in ("first", "second"):
        nursery.start_soon(claims.claim(100, limit, host).wait)
        await trio.testing.wait_all_tasks_blocked()
    for i in range(1, 32):
        await trio.sleep(0.1)
        quick.count(100 + i * 10_000, limit)
    # The first claim was allowed to continue without free memory, and then it stalled.
    assert claims.aborted == ["slow", "first"]
    await trio.sleep(3)
    assert set(claims.aborted) == {"slow", "first", "quick"}  # "quick" has stalled
    nursery.cancel_scope.cancel()


async def test_delay_of_event_loop_does_not_abort_claims(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The bytes that arrive during a delay are received after the check that the delay postponed."""
    limit = 1 << 20
    claims = Claims(limit)
    receiving = [claims.claim(limit, limit, "a"), claims.claim(100, limit, "b")]
    waiting = claims.claim(100, limit, "c")
    for each in (receiving[1], waiting):
        nursery.start_soon(each.wait)
        await trio.testing.wait_all_tasks_blocked()
    for _ in range(5):
        await trio.sleep(1.01 * CHECK_SECONDS)
        autojump_clock.jump(CHECK_SECONDS)
        await trio.testing.wait_all_tasks_blocked()
        for each in receiving:
            each.count(each.held + 300_000, limit)
    assert not claims.aborted
    assert not waiting.may_continue
    nursery.cancel_scope.cancel()
