"""Time limits of schema checks: no schema blocks the others."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable

import pytest
import trio
import trio.testing

from kbroker.runtime.child_process import ChildProcess
from kbroker.runtime.fair_slots import FairSlots
from kbroker.schemas import workers as workers_module
from kbroker.schemas.core.errors import SCHEMA_TOO_LARGE, STORE_FAILED, RegistryError
from kbroker.schemas.core.registry import CheckResult, CheckTask
from kbroker.schemas.core.values import PROTOBUF
from kbroker.schemas.core.work import Serialize, Vet
from kbroker.schemas.worker_process import program
from kbroker.schemas.workers import SchemaWorkers

from .attacks import ATTACKS, BYTES, GOOD
from .client import schema_workers
from .fuzzed import Fuzz

QUICK_BYTES = 30_000
BYTES_PER_SCHEMA = 2000
# Fuzzed comparisons per schema of `--schemas`.
FUZZED_PER_SCHEMA = 4


async def refusal(operation: Awaitable[object]) -> RegistryError | None:
    try:
        await operation
    except RegistryError as error:
        return error
    return None


def _program(niceness: int, seconds: float) -> str:
    """Return the program of a worker process, with another CPU limit."""
    return program(niceness).replace(
        "import main;", f"import main; sys.modules[main.__module__].CPU_SECONDS = {seconds};"
    )


async def assert_bounded(workers: SchemaWorkers, compared: CheckTask, client: str = "") -> None:
    """Check that the process responds within its time limit, to valid and invalid schemas."""
    error = await refusal(workers.check(compared, client))
    assert error is None or ("processor time" not in str(error) and error.code // 100 == 422), (
        compared,
        error,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_is_rejected_within_time_limit_of_small_schema(name: str) -> None:
    async with schema_workers() as workers:
        await assert_bounded(workers, ATTACKS[name](QUICK_BYTES).compared())


@pytest.mark.long
async def test_large_attacks_are_rejected_within_time_limit(pytestconfig: pytest.Config) -> None:
    size = min(BYTES, BYTES_PER_SCHEMA * pytestconfig.getoption("--schemas"))
    async with schema_workers() as workers:
        for each in ATTACKS.values():
            await assert_bounded(workers, each(size).compared())


@pytest.mark.long
async def test_fuzzed_schemas_are_checked_within_time_limit(
    pytestconfig: pytest.Config, caplog: pytest.LogCaptureFixture
) -> None:
    seed = pytestconfig.getoption("--seed")
    fuzz, count = Fuzz(seed), FUZZED_PER_SCHEMA * pytestconfig.getoption("--schemas")
    good = 0
    async with schema_workers() as workers:
        for _ in range(count):
            compared = fuzz.compared()
            error = await refusal(workers.check(compared, ""))
            good += error is None
            assert error is None or error.code // 100 == 422, (compared, error)
            assert error is None or "processor time" not in str(error), compared
            if error is None:
                await refusal(workers.vet(Vet(compared.content, {}), ""))
                if compared.content.type == PROTOBUF:
                    await refusal(workers.serialized(Serialize(compared.content, {}), ""))
            assert not caplog.records, (compared, caplog.text)
    assert good > count // 20
    print(f"\nfigures: {count:,} fuzzed schemas, {good:,} of them good")


@pytest.mark.slow
async def test_slow_schema_is_killed_while_others_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hostile = ATTACKS["many_required_names"](BYTES).compared()
    done: list[str] = []
    monkeypatch.setattr(workers_module, "program", lambda niceness: _program(niceness, 0.5))
    async with schema_workers() as workers:

        async def attack() -> None:
            error = await refusal(workers.check(hostile, "hostile"))
            assert error is not None
            assert (error.code, "processor time" in str(error)) == (SCHEMA_TOO_LARGE, True)
            done.append("hostile")

        await workers.check(GOOD, "polite")
        (first,) = workers.processes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attack)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await workers.check(GOOD, "polite")
            done.append("polite")
        assert done == ["polite", "hostile"]
        assert first in workers.processes
        await workers.check(GOOD, "polite")
    assert not workers.processes


async def test_no_process_is_started_before_the_first_schema() -> None:
    async with schema_workers() as workers:
        await trio.lowlevel.checkpoint()
        assert not workers.processes
        for _ in range(3):
            await workers.check(GOOD, "")
        assert len(workers.processes) == 1


async def test_idle_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "KEPT_SECONDS", 0.01)
    async with schema_workers() as workers:
        await workers.check(GOOD, "")
        with trio.fail_after(30):
            while workers.processes:  # noqa: ASYNC110
                await trio.sleep(0.01)


async def test_process_that_gets_a_task_while_another_idle_one_ends_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with schema_workers() as workers:
        async with trio.open_nursery() as nursery:
            for client in "ab":
                nursery.start_soon(workers.check, GOOD, client)
        assert len(workers.processes) == 2
        end = ChildProcess.end
        checked = []

        async def end_while_busy(worker: ChildProcess, seconds: float) -> int:
            monkeypatch.undo()
            checked.append(await workers.check(GOOD, ""))
            return await end(worker, seconds)

        monkeypatch.setattr(ChildProcess, "end", end_while_busy)
        await workers._end_idle(workers._small, trio.current_time())
        assert isinstance(checked[0], CheckResult)
        assert len(workers.processes) == 1


async def test_cancelled_task_ends_its_process() -> None:
    async with schema_workers() as workers:
        with trio.move_on_after(0.05) as limit:
            await workers.check(ATTACKS["many_required_names"](BYTES).compared(), "")
        assert limit.cancelled_caught
        assert not workers.processes


async def test_failed_process_is_logged_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async with schema_workers() as workers:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workers_module, "program", lambda _: "raise SystemExit(9)")
            error = await refusal(workers.check(GOOD, ""))
        assert error is not None
        assert error.code == 50001
        assert "status 9" in caplog.text
        assert isinstance(await workers.check(GOOD, ""), CheckResult)


async def test_clients_get_slots_in_turn() -> None:
    slots, order = FairSlots(1), []

    async def work(client: str, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        async with slots.taken(client):
            order.append(client)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery, slots.taken("first"):
        for client in ("greedy", "greedy", "greedy", "polite"):
            await nursery.start(work, client)
            await trio.testing.wait_all_tasks_blocked()
    assert order == ["greedy", "polite", "greedy", "greedy"]


async def test_cancelled_waiter_leaves_its_slot_to_others() -> None:
    slots = FairSlots(1)
    async with slots.taken("a"):
        with trio.move_on_after(0):
            async with slots.taken("b"):
                raise AssertionError("there is no slot")
    with trio.fail_after(1):
        async with slots.taken("c"):
            pass


async def test_idle_processes_that_were_killed_are_replaced_without_a_failed_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with schema_workers() as workers:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workers.check, GOOD, "one")
            nursery.start_soon(workers.check, GOOD, "another")
        idle = workers.processes
        for pid in idle:
            os.kill(pid, signal.SIGKILL)
        await workers.check(GOOD, "one")
        assert not {*workers.processes} & {*idle}
    assert f"ended with status -{int(signal.SIGKILL)}, using another one" in caplog.text


async def test_task_that_kills_every_process_is_not_retried_forever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with schema_workers() as workers:
        await workers.check(GOOD, "one")
        dies = program(0).replace("main()", "sys.stdin.buffer.read(1); os._exit(7)")
        monkeypatch.setattr(workers_module, "program", lambda niceness: dies)
        os.kill(workers.processes[0], signal.SIGKILL)
        error = await refusal(workers.check(GOOD, "one"))
    assert error is not None
    assert error.code == STORE_FAILED
    assert "ended with status 7" in caplog.text


@pytest.mark.parametrize("is_reused", [False, True])
async def test_close_leaves_no_process_for_tasks_in_progress(
    monkeypatch: pytest.MonkeyPatch, is_reused: bool
) -> None:
    """The console may still use the processes when the registry closes them."""
    workers, asked, ask = SchemaWorkers(), trio.Event(), ChildProcess.ask
    errors: list[RegistryError | None] = []

    async def notify_and_ask(process: ChildProcess, task: object) -> object:
        os.kill(process.pid, signal.SIGSTOP)  # so that it does not answer before the end
        asked.set()
        return await ask(process, task)

    async def check() -> None:
        errors.append(await refusal(workers.check(GOOD, "")))

    if is_reused:
        await workers.check(GOOD, "one")
    monkeypatch.setattr(ChildProcess, "ask", notify_and_ask)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check)
        await asked.wait()
        await workers.close()
    assert "the schema registry is stopping" in str(errors[0])
    assert workers.processes == []


async def test_close_ends_process_that_starts_concurrently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers, begun, closed, start = SchemaWorkers(), trio.Event(), trio.Event(), ChildProcess.start

    async def start_late(text: str) -> ChildProcess:
        begun.set()
        await closed.wait()
        return await start(text)

    monkeypatch.setattr(ChildProcess, "start", start_late)
    errors: list[RegistryError | None] = []

    async def check() -> None:
        errors.append(await refusal(workers.check(GOOD, "")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(check)
        await begun.wait()
        await workers.close()
        closed.set()
    assert "the schema registry is stopping" in str(errors[0])
    assert workers.processes == []


async def test_closed_workers_start_no_process_until_they_run_again() -> None:
    workers = SchemaWorkers()
    await workers.close()
    assert "the schema registry is stopping" in str(await refusal(workers.check(GOOD, "")))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.run)
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(await workers.check(GOOD, ""), CheckResult)
        nursery.cancel_scope.cancel()
    assert workers.processes == []
