"""Test cases of damaged data directories, and the check of a broker started on one.

A broker must serve exactly the acknowledged records or name the damage. It either refuses to start
with an error that names a file, or logs which partition is offline or differs.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import trio

from kbroker.broker import Broker
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..brokers import started
from ..wire import Topic, connected, fetch, values_of
from .directories import SETTINGS, Key, Templates, keys

NOT_DAMAGED = {".lock"}
START_SECONDS_MAX = 60
# Part of a warning about several directories, which lists only some of them.
PLACED_ELSEWHERE = "metadata does not assign to node"

Damage = Callable[[Path, random.Random, Templates], str]


class Outcome(NamedTuple):
    """The outcome of a case.

    Attributes:
        case: Seed, source and damages, as text.
        result: "served", "named", "refused" or "failed".
        faults: Silent data loss, and errors without usable information.
    """

    case: str
    result: str
    faults: list[str]


# -- damages


def files_in(data: Path) -> list[Path]:
    return sorted(
        path for path in data.rglob("*") if path.is_file() and path.name not in NOT_DAMAGED
    )


def partition_directories(data: Path) -> list[Path]:
    return sorted(path for path in data.iterdir() if path.is_dir() and path.name[-1:].isdigit())


def flip(data: Path, random_: random.Random, _: Templates) -> str:
    path = random_.choice([each for each in files_in(data) if each.stat().st_size])
    content = bytearray(path.read_bytes())
    position = random_.randrange(len(content))
    content[position] ^= 1 << random_.randrange(8)
    path.write_bytes(content)
    return f"flip {path.relative_to(data)} at {position}"


def cut(data: Path, random_: random.Random, _: Templates) -> str:
    path = random_.choice([each for each in files_in(data) if each.stat().st_size])
    size = random_.randrange(path.stat().st_size)
    path.write_bytes(path.read_bytes()[:size])
    return f"cut {path.relative_to(data)} to {size}"


def zero(data: Path, random_: random.Random, _: Templates) -> str:
    path = random_.choice([each for each in files_in(data) if each.stat().st_size])
    content = bytearray(path.read_bytes())
    start = random_.randrange(len(content))
    end = min(len(content), start + random_.choice([1, 100, 4096]))
    content[start:end] = bytes(end - start)
    path.write_bytes(content)
    return f"zero {path.relative_to(data)} from {start} to {end}"


def remove(data: Path, random_: random.Random, _: Templates) -> str:
    path = random_.choice(files_in(data))
    path.unlink()
    return f"remove {path.relative_to(data)}"


def remove_directory(data: Path, random_: random.Random, _: Templates) -> str:
    path = random_.choice(partition_directories(data))
    shutil.rmtree(path)
    return f"remove {path.name}"


def swap_files(data: Path, random_: random.Random, _: Templates) -> str:
    one = random_.choice(files_in(data))
    same_type = [path for path in files_in(data) if path.suffix == one.suffix and path != one]
    two = random_.choice(same_type or [path for path in files_in(data) if path != one])
    swap(one, two)
    return f"swap {one.relative_to(data)} and {two.relative_to(data)}"


def swap_directories(data: Path, random_: random.Random, _: Templates) -> str:
    one, two = random_.sample(partition_directories(data), 2)
    swap(one, two)
    return f"swap {one.name} and {two.name}"


def swap(one: Path, two: Path) -> None:
    aside = one.with_name("swapping")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def replace_by_older_file(data: Path, random_: random.Random, templates: Templates) -> str:
    names = [path.relative_to(templates.older) for path in files_in(templates.older)]
    name = random_.choice([each for each in names if (data / each).exists()])
    shutil.copyfile(templates.older / name, data / name)
    return f"older {name}"


def replace_by_older_directory(data: Path, random_: random.Random, templates: Templates) -> str:
    return _replace_directory(data, random_, templates.older, "older")


def replace_by_older_journal(data: Path, _: random.Random, templates: Templates) -> str:
    shutil.copyfile(templates.older / "cluster.journal", data / "cluster.journal")
    return "older cluster.journal"


def replace_journal_and_accept(data: Path, random_: random.Random, templates: Templates) -> str:
    """Accept an older journal as the startup error proposes."""
    (data / "cluster.journal.clean").unlink(missing_ok=True)
    return replace_by_older_journal(data, random_, templates) + ", accepted"


def replace_by_other_cluster(data: Path, random_: random.Random, templates: Templates) -> str:
    return _replace_directory(data, random_, templates.other, "of another cluster:")


def _replace_directory(data: Path, random_: random.Random, source: Path, action: str) -> str:
    path = random_.choice(partition_directories(source))
    shutil.rmtree(data / path.name, ignore_errors=True)
    shutil.copytree(path, data / path.name)
    return f"{action} {path.name}"


DAMAGES: Sequence[Damage] = (
    flip,
    cut,
    zero,
    remove,
    remove_directory,
    swap_files,
    swap_directories,
    replace_by_older_file,
    replace_by_older_directory,
    replace_by_older_journal,
    replace_journal_and_accept,
    replace_by_other_cluster,
)


# -- a case


def choose_damages(random_: random.Random) -> list[Damage]:
    """Draw one damage, sometimes two."""
    return [random_.choice(DAMAGES) for _ in range(random_.choice([1, 1, 1, 2]))]


async def run_case(
    templates: Templates, work: Path, seed: int, damages: Sequence[Damage] | None = None
) -> Outcome:
    """Damage a copy of a directory, start a broker on it, and compare the served records."""
    random_ = random.Random(seed)
    data = work / f"case-{seed}"
    source = random_.choice([templates.clean, templates.crashed])
    shutil.copytree(source, data)
    done = [damage(data, random_, templates) for damage in damages or choose_damages(random_)]
    case = f"seed {seed}, {source.name}: {' and '.join(done)}"
    try:
        with collected_log() as lines:
            result, faults = await _check(templates, data, lines)
        return Outcome(case, result, faults)
    finally:
        shutil.rmtree(data)


async def _check(templates: Templates, data: Path, lines: list[str]) -> tuple[str, list[str]]:
    with trio.fail_after(START_SECONDS_MAX):
        try:
            async with started(data, **SETTINGS) as broker:
                differing = [key for key in keys() if await _differs(broker, key, templates)]
        except (KafkaError, ValueError) as error:
            is_usable = str(data) in str(error) or "data directory" in str(error)
            return "refused", [] if is_usable else [f"refused without a file: {error}"]
        except BaseExceptionGroup as group:
            return "failed", [repr(error) for error in group.exceptions]
        except AssertionError as error:
            return "failed", [f"unhandled error: {error!r}"]
    text = "\n".join(lines)
    silent = [f"{name}-{index}" for name, index in differing if f"{name}-{index}" not in text]
    if PLACED_ELSEWHERE in text:
        silent = [name for name in silent if not _is_stray(data, name)]
    faults = [f"{name} differs, and no warning names it" for name in silent]
    return "named" if differing else "served", faults


def _is_stray(data: Path, name: str) -> bool:
    return any(data.glob(f"{name}.*-stray"))


async def _differs(broker: Broker, key: Key, templates: Templates) -> bool:
    """Return True unless a partition serves exactly what was acknowledged."""
    name, index = key
    topic = broker.node.cluster.topics.get(name)
    if topic is None:
        return True
    try:
        start = broker.node.partitions.named_hosted(name, index).log.log_start_offset
    except KafkaError:
        start = 0
    served: list[bytes | None] = []
    async with connected(broker.endpoint) as wire:
        while True:
            row = await fetch(wire, Topic(name, topic.id), start + len(served), partitions=[index])
            if row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                await trio.sleep(0.01)  # the leader epoch is being bumped
                continue
            if row.error_code:
                return True
            values = values_of(row)
            if not values:
                return served != templates.truth[key]
            served += values


@contextmanager
def collected_log() -> Iterator[list[str]]:
    """Collect the warnings and errors of kbroker."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Collector(logging.WARNING)
    logger = logging.getLogger("kbroker")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
