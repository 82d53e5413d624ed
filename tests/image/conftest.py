"""The image, built once, and containers of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from .containerfile import Container, Image, NoContainers, Workshop, can_make_containers

ROOT = Path(__file__).parents[2]
SECONDS = 60

Start = Callable[..., Container]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    if not can_make_containers():
        pytest.skip("no roots can be made here")
    try:
        workshop = Workshop(tmp_path_factory.mktemp("workshop"), ROOT)
    except NoContainers as error:
        pytest.skip(f"no roots can be made here: {error}")
    yield workshop
    workshop.close()


@pytest.fixture(scope="session")
def image(workshop: Workshop) -> Image:
    return workshop.build((ROOT / "Containerfile").read_text())


@pytest.fixture
def start(workshop: Workshop, image: Image) -> Iterator[Start]:
    """Starts containers, and waits until the log of one has a line."""
    running: list[Container] = []

    def run(
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        until: str | None = r"\[KafkaServer id=\d+\] started",
    ) -> Container:
        container = workshop.start(image, command, environment, files)
        running.append(container)
        if until is not None:
            wait_for_line(container, until)
        return container

    yield run
    for each in running:
        each.kill()


def wait_for_line(container: Container, pattern: str) -> None:
    """Wait until a container's log has a line that fits; fails with the log if it never does."""
    give_up = time.monotonic() + SECONDS
    while not re.search(pattern, container.logged()):
        assert container.process.poll() is None, container.logged()
        assert time.monotonic() < give_up, container.logged()
        time.sleep(0.05)
