"""The steps of a Containerfile as processes: there is no engine where this is tested.

A stage is a change of root into a copy-on-write view of this machine, so that its base is not the image
that the file names, but this system with this Python. Everything else is as an engine does it: the
steps, the files, the user, the environment and the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FIRST_USER, NOBODY = 1000, 60000
HOSTS = "127.0.0.1 localhost broker\n"
START_SECONDS = 30
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NoContainers(Exception):
    """Roots and networks cannot be made here; what the system says."""


@dataclass(slots=True)
class Image:
    """What a stage has come to: `layer` has its files, the others are its settings."""

    layer: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": SEARCHED})
    user: str = "root"
    directory: str = "/"
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    exposed: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Containerfile, each with its arguments as one line."""
    lines = [line for line in text.splitlines() if not re.match(r"\s*(#|$)", line)]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


class Workshop:
    """A place in which images are built and containers run. Call `close` at the end.

    Parameters: `directory` is empty; `context` is what `COPY` copies from. Raises NoContainers.
    """

    def __init__(self, directory: Path, context: Path) -> None:
        self._directory = directory
        self._context = context
        self._count = 0
        # What is mounted below the directory is seen in here only, and goes with this process.
        hold = f"mount -t tmpfs tmpfs {directory} && mkdir {directory}/here && exec sleep infinity"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", hold], stderr=subprocess.PIPE, text=True
        )
        self._inside = ["nsenter", "--target", str(self._holder.pid), "--mount"]
        for _ in range(500):
            if self._holder.poll() is not None:
                assert self._holder.stderr is not None
                raise NoContainers(self._holder.stderr.read())
            if self._on_the_bench("test", "-d", f"{directory}/here").returncode == 0:
                return
        raise NoContainers("nothing was mounted")

    def close(self) -> None:
        """End it; what was mounted goes with it."""
        self._holder.kill()
        self._holder.communicate()

    def _on_the_bench(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._inside, *command], input=stdin, text=True, capture_output=True, check=False
        )

    def _layer(self) -> Path:
        """A directory for the files that one stage or container writes."""
        self._count += 1
        place = self._directory / str(self._count)
        self._on_the_bench("mkdir", str(place), f"{place}/files", f"{place}/work", f"{place}/root")
        return place

    # -- building

    def build(self, text: str) -> Image:
        """The image that a Containerfile describes. Fails with the output of a step that fails."""
        stages: dict[str, Image] = {}
        image = Image(Path())
        for name, rest in instructions(text):
            if name == "FROM":
                _base, _, stage = rest.partition(" AS ")
                image = stages[stage] = Image(self._layer())
                self._with_python(image)
            else:
                self._step(image, stages, name, rest)
        return image

    def _with_python(self, image: Image) -> None:
        """What the base image has: Python on the path, and no users of people."""
        users = Path("/etc/passwd").read_text().splitlines()
        system = [each for each in users if not FIRST_USER <= int(each.split(":")[2]) < NOBODY]
        self.write(image, "/etc/passwd", "\n".join([*system, ""]))
        directory = Path(sys.executable).resolve().parent
        for above in directory.parents:
            self._on_the_bench("mkdir", "--parents", "--mode=755", f"{image.layer}/files{above}")
        for name in ("python3", "pip"):
            path = directory / name
            script = f'#!/bin/sh\nexec "{path}" "$@"\n'
            self.write(image, f"/usr/local/bin/{name}", script, mode="755")

    def _step(self, image: Image, stages: Mapping[str, Image], name: str, rest: str) -> None:
        match name:
            case "RUN":
                done = subprocess.run(
                    self._entering(image, ["sh", "-c", rest], image.layer, image.environment),
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"{rest}\n{done.stdout}{done.stderr}"
            case "COPY":
                self._copy(image, stages, shlex.split(rest))
            case "USER":
                image.user = rest
            case "WORKDIR":
                image.directory = rest
            case "ENV":
                image.environment |= dict(each.split("=", 1) for each in shlex.split(rest))
            case "CMD":
                image.command = json.loads(rest)
            case "EXPOSE":
                image.exposed += rest.split()
            case "VOLUME":
                image.volumes += json.loads(rest)
            case "HEALTHCHECK":
                image.health = json.loads(rest.partition("CMD ")[2])
            case "STOPSIGNAL":
                pass
            case _:
                raise ValueError(f"no such instruction here: {name}")

    def _copy(self, image: Image, stages: Mapping[str, Image], words: Sequence[str]) -> None:
        *options, source, target = words
        place = f"{image.layer}/files{target}"
        names = ["."]
        if options:
            (option,) = options
            whence = f"{stages[option.removeprefix('--from=')].layer}/files{source}"
        else:
            whence = str(self._context / source)
            if source == ".":
                names = _not_ignored(self._context)
        packed = f"tar -C {whence} --exclude=__pycache__ -c {shlex.join(names)}"
        script = f"mkdir -p {place} && {packed} | tar -C {place} -x"
        done = self._on_the_bench("sh", "-c", script)
        assert done.returncode == 0, done.stderr

    def write(self, image: Image, path: str, text: str, *, mode: str = "644") -> None:
        """Put a file into an image, or into a container's own layer, as engines do."""
        place = shlex.quote(f"{image.layer}/files{path}")
        script = f"mkdir -p $(dirname {place}) && cat > {place} && chmod {mode} {place}"
        done = self._on_the_bench("sh", "-c", script, stdin=text)
        assert done.returncode == 0, done.stderr

    # -- running

    def _entering(
        self,
        image: Image,
        command: Sequence[str],
        layer: Path,
        environment: Mapping[str, str],
        *,
        below: Path | None = None,
        apart: bool = False,
    ) -> list[str]:
        """The command line that runs one in the root of an image.

        Parameters: `layer` takes what is written, `below` is one that is only read; with `apart` it
        has processes, a network and a host name of its own, as a container has.
        """
        lower = "/" if below is None else f"{below}/files:/"
        user = image.user
        root = f"{layer}/root"
        lines = [
            f"mount -t overlay overlay -o lowerdir={lower},upperdir={layer}/files,workdir={layer}/work {root}",
            f"mount --rbind /dev {root}/dev",
            f"mount -t proc proc {root}/proc",
        ]
        if apart:
            lines += ["ip link set lo up", "hostname broker"]
            lines += [f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp"]
            lines += [f"printf {shlex.quote(HOSTS)} > {root}/etc/hosts"]
        settings = {"HOME": "/root" if user == "root" else image.directory, **environment}
        words = [f"{name}={value}" for name, value in settings.items()]
        inner = [*("chroot", f"--userspec={user}", root), *("env", "-i", *words)]
        inner += ["sh", "-c", f'cd {image.directory} && exec "$@"', "sh", *command]
        lines.append(f"exec {shlex.join(inner)}")
        flags = ["--net", "--uts"] if apart else []
        own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *flags]
        return [*self._inside, *own, "sh", "-c", " && ".join(lines)]

    def start(
        self,
        image: Image,
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> Container:
        """Start a container with the image's command, or another one, and files put into it."""
        layer = self._layer()
        settings = {**image.environment, **(environment or {})}
        container = Container(self, image, layer, settings)
        for path, text in (files or {}).items():
            self.write(Image(layer), path, text)
        container.start(command or image.command)
        return container


def _not_ignored(context: Path) -> list[str]:
    """What engines see of a context whose .containerignore says what is *not* left out."""
    everything, *rest = (context / ".containerignore").read_text().splitlines()
    assert everything == "*"
    kept = [line.removeprefix("!") for line in rest if line.startswith("!")]
    assert [line for line in rest if not line.startswith("!")] == ["**/__pycache__"]
    return kept


class Container:
    """A container that runs. Get one from `Workshop.start`; call `kill` at the end."""

    def __init__(
        self, workshop: Workshop, image: Image, layer: Path, environment: Mapping[str, str]
    ) -> None:
        self._workshop = workshop
        self._image = image
        self._layer = layer
        self._environment = environment
        self.log = Path(workshop._directory.parent, f"{workshop._directory.name}-{layer.name}.log")

    def start(self, command: Sequence[str]) -> None:
        """Run its command."""
        words = self._workshop._entering(
            self._image,
            command,
            self._layer,
            self._environment,
            below=self._image.layer,
            apart=True,
        )
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        give_up = time.monotonic() + START_SECONDS
        while not self._is_inside():
            assert self.process.poll() is None, self.logged()
            assert time.monotonic() < give_up, self.logged()
            time.sleep(0.02)

    def _is_inside(self) -> bool:
        """Whether its first process has changed its root."""
        try:
            hosts = Path(f"/proc/{self.first_process()}/root/etc/hosts").read_text()
        except (OSError, IndexError):
            return False
        return hosts == HOSTS

    def put(self, path: str, text: str) -> None:
        """Copy a file into it while it runs, as engines do: it belongs to root and can be run."""
        script = f"cat > {shlex.quote(path)}.new && chmod 755 {path}.new && mv {path}.new {path}"
        done = self._enter("sh", "-c", script, stdin=text)
        assert done.returncode == 0, done.stderr

    def first_process(self) -> str:
        """The first process of its own."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return children.read_text().split()[0]

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run one more command in it, as `docker exec` does."""
        settings = {"HOME": self._image.directory, **self._environment}
        words = [f"{name}={value}" for name, value in settings.items()]
        user = ["setpriv", "--reuid=1000", "--regid=0", "--clear-groups"]
        return self._enter(*user, *("env", "-i", *words), *command, stdin=stdin)

    def _enter(self, *command: str, stdin: str) -> subprocess.CompletedProcess[str]:
        first = self.first_process()
        there = [f"--root=/proc/{first}/root", f"--wd=/proc/{first}/cwd"]
        return subprocess.run(
            ["nsenter", "--target", first, "--all", *there, *command],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def logged(self) -> str:
        """What it has written."""
        return self.log.read_text(errors="replace")

    def stop(self) -> int:
        """Tell it to end as engines do; returns its status."""
        subprocess.run(["kill", "-TERM", self.first_process()], check=True)
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        """End it at once."""
        # `unshare --kill-child` asks for a signal that Linux forgets when the child becomes another user.
        with contextlib.suppress(OSError, IndexError):
            os.kill(int(self.first_process()), signal.SIGKILL)
        self.process.kill()
        self.process.wait()


def can_make_containers() -> bool:
    """Whether this process may change roots and make networks."""
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("unshare") is not None
