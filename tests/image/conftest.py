"""Fixtures: the image, built once per session, and its containers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from .containerfile import (
    Container,
    ContainerEngine,
    ContainersUnavailable,
    Image,
    can_create_containers,
)

ROOT = Path(__file__).parents[2]
SECONDS = 60

Start = Callable[..., Container]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerEngine]:
    if not can_create_containers():
        pytest.skip("cannot create containers: root permissions on Linux and unshare are required")
    try:
        engine = ContainerEngine(tmp_path_factory.mktemp("containers"), ROOT)
    except ContainersUnavailable as error:
        pytest.skip(f"cannot create containers: {error}")
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def image(engine: ContainerEngine) -> Image:
    # The compilation would take minutes; `make wheels` tests the image with a compiled wheel.
    return engine.build((ROOT / "Containerfile").read_text(), {"KBROKER_COMPILE": "0"})


@pytest.fixture
def start(engine: ContainerEngine, image: Image) -> Iterator[Start]:
    """Return a function that starts a container and waits for a line of its log."""
    running: list[Container] = []

    def run(
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        until: str | None = r"\[KafkaServer id=\d+\] started",
    ) -> Container:
        container = engine.start(image, command, environment, files)
        running.append(container)
        if until is not None:
            wait_for_line(container, until)
        return container

    yield run
    for each in running:
        each.kill()


def wait_for_line(container: Container, pattern: str) -> None:
    """Wait until a line of a container's log matches; fail with the log on a timeout."""
    deadline = time.monotonic() + SECONDS
    while not re.search(pattern, container.log_text()):
        assert container.process.poll() is None, container.log_text()
        assert time.monotonic() < deadline, container.log_text()
        time.sleep(0.05)
