"""A minimal container engine that runs the steps of a Containerfile as processes.

A stage is a chroot into a copy-on-write view of this machine. So its base is this system with this
Python, not the image that the file names. Everything else works as in an engine: steps, files,
user, environment and command.
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


class ContainersUnavailable(Exception):
    """This system cannot create chroots and networks; the message has the reason."""


@dataclass(slots=True)
class Image:
    """A built stage: `layer` contains its files, the other fields are its settings."""

    layer: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": SEARCHED})
    # Values of ARG, which only the steps of the build see.
    arguments: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    directory: str = "/"
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    exposed: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Parse a Containerfile into instructions, each with its arguments on one line."""
    lines = [line for line in text.splitlines() if not re.match(r"\s*(#|$)", line)]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, arguments = line.partition(" ")
        yield name, arguments.strip()


class ContainerEngine:
    """An engine that builds images and runs containers. Call `close` at the end.

    Args:
        directory: An empty directory for the layers.
        context: The directory that `COPY` copies from.

    Raises:
        ContainersUnavailable: This system cannot create containers.
    """

    def __init__(self, directory: Path, context: Path) -> None:
        self._directory = directory
        self._context = context
        self._count = 0
        # The mounts below the directory exist only in this process's namespace.
        hold = f"mount -t tmpfs tmpfs {directory} && mkdir {directory}/here && exec sleep infinity"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", hold], stderr=subprocess.PIPE, text=True
        )
        self._inside = ["nsenter", "--target", str(self._holder.pid), "--mount"]
        for _ in range(500):
            if self._holder.poll() is not None:
                assert self._holder.stderr is not None
                raise ContainersUnavailable(self._holder.stderr.read())
            if self._run_in_namespace("test", "-d", f"{directory}/here").returncode == 0:
                return
        raise ContainersUnavailable("the tmpfs was not mounted")

    def close(self) -> None:
        """End the namespace with its mounts."""
        self._holder.kill()
        self._holder.communicate()

    def _run_in_namespace(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._inside, *command], input=stdin, text=True, capture_output=True, check=False
        )

    def _layer(self) -> Path:
        """Create the directories of a new layer."""
        self._count += 1
        layer_path = self._directory / str(self._count)
        self._run_in_namespace(
            "mkdir",
            str(layer_path),
            f"{layer_path}/files",
            f"{layer_path}/work",
            f"{layer_path}/root",
        )
        return layer_path

    # -- building

    def build(self, text: str, given: Mapping[str, str] | None = None) -> Image:
        """Build the image of a Containerfile. Fails with the output of a failed step.

        Args:
            text: The Containerfile.
            given: Values of build arguments; others have the defaults of the Containerfile.
        """
        stages: dict[str, Image] = {}
        image = Image(Path())
        for name, arguments in instructions(text):
            if name == "FROM":
                _base, _, stage = arguments.partition(" AS ")
                image = stages[stage] = Image(self._layer())
                self._with_python(image)
            elif name == "ARG":
                argument, has_default, default = arguments.partition("=")
                if has_default or argument in (given or {}):
                    image.arguments[argument] = (given or {}).get(argument, default)
            else:
                self._step(image, stages, name, arguments)
        return image

    def _with_python(self, image: Image) -> None:
        """Add the content of the base image: Python on the path, and only system users."""
        users = Path("/etc/passwd").read_text().splitlines()
        system = [each for each in users if not FIRST_USER <= int(each.split(":")[2]) < NOBODY]
        self.write(image, "/etc/passwd", "\n".join([*system, ""]))
        directory = Path(sys.executable).resolve().parent
        for above in directory.parents:
            self._run_in_namespace(
                "mkdir", "--parents", "--mode=755", f"{image.layer}/files{above}"
            )
        for name in ("python3", "pip"):
            path = directory / name
            script = f'#!/bin/sh\nexec "{path}" "$@"\n'
            self.write(image, f"/usr/local/bin/{name}", script, mode="755")

    def _step(self, image: Image, stages: Mapping[str, Image], name: str, arguments: str) -> None:
        match name:
            case "RUN":
                environment = image.environment | image.arguments
                done = subprocess.run(
                    self._entering(image, ["sh", "-c", arguments], image.layer, environment),
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
            case "COPY":
                self._copy(image, stages, shlex.split(arguments))
            case "USER":
                image.user = arguments
            case "WORKDIR":
                image.directory = arguments
            case "ENV":
                image.environment |= dict(each.split("=", 1) for each in shlex.split(arguments))
            case "CMD":
                image.command = json.loads(arguments)
            case "EXPOSE":
                image.exposed += arguments.split()
            case "VOLUME":
                image.volumes += json.loads(arguments)
            case "HEALTHCHECK":
                image.health = json.loads(arguments.partition("CMD ")[2])
            case "STOPSIGNAL":
                pass
            case _:
                raise ValueError(f"unsupported Containerfile instruction {name!r}")

    def _copy(self, image: Image, stages: Mapping[str, Image], arguments: Sequence[str]) -> None:
        *options, source, target = arguments
        layer_path = f"{image.layer}/files{target}"
        names = ["."]
        if options:
            (option,) = options
            origin = f"{stages[option.removeprefix('--from=')].layer}/files{source}"
        else:
            origin = str(self._context / source)
            if source == ".":
                names = _not_ignored(self._context)
        packed = f"tar -C {origin} --exclude=__pycache__ -c {shlex.join(names)}"
        script = f"mkdir -p {layer_path} && {packed} | tar -C {layer_path} -x"
        done = self._run_in_namespace("sh", "-c", script)
        assert done.returncode == 0, done.stderr

    def write(self, image: Image, path: str, text: str, *, mode: str = "644") -> None:
        """Write a file into an image or a container layer."""
        layer_path = shlex.quote(f"{image.layer}/files{path}")
        script = (
            f"mkdir -p $(dirname {layer_path}) && cat > {layer_path} && chmod {mode} {layer_path}"
        )
        done = self._run_in_namespace("sh", "-c", script, stdin=text)
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
        isolated: bool = False,
    ) -> list[str]:
        """Return the command line that runs a command in the chroot of an image.

        Args:
            image: Provides user and working directory.
            command: The command.
            layer: The writable layer.
            environment: Environment variables.
            below: A read-only layer below.
            isolated: Use separate network and host name, as a container.
        """
        lower = "/" if below is None else f"{below}/files:/"
        user = image.user
        root = f"{layer}/root"
        lines = [
            f"mount -t overlay overlay -o lowerdir={lower},upperdir={layer}/files,workdir={layer}/work {root}",
            f"mount --rbind /dev {root}/dev",
            f"mount -t proc proc {root}/proc",
        ]
        if isolated:
            lines += ["ip link set lo up", "hostname broker"]
            lines += [f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp"]
            lines += [f"printf {shlex.quote(HOSTS)} > {root}/etc/hosts"]
        settings = {"HOME": "/root" if user == "root" else image.directory, **environment}
        arguments = [f"{name}={value}" for name, value in settings.items()]
        inner = [*("chroot", f"--userspec={user}", root), *("env", "-i", *arguments)]
        inner += ["sh", "-c", f'cd {image.directory} && exec "$@"', "sh", *command]
        lines.append(f"exec {shlex.join(inner)}")
        flags = ["--net", "--uts"] if isolated else []
        own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *flags]
        return [*self._inside, *own, "sh", "-c", " && ".join(lines)]

    def start(
        self,
        image: Image,
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> Container:
        """Start a container with the image's or another command, and with additional files."""
        layer = self._layer()
        settings = {**image.environment, **(environment or {})}
        container = Container(self, image, layer, settings)
        for path, text in (files or {}).items():
            self.write(Image(layer), path, text)
        container.start(command or image.command)
        return container


def _not_ignored(context: Path) -> list[str]:
    """Return the paths of a context that .containerignore includes."""
    ignore_all, *arguments = (context / ".containerignore").read_text().splitlines()
    assert ignore_all == "*"
    kept = [line.removeprefix("!") for line in arguments if line.startswith("!")]
    assert [line for line in arguments if not line.startswith("!")] == ["**/__pycache__"]
    # An engine ignores a path that does not exist.
    return [name for name in kept if (context / name).exists()]


class Container:
    """A running container from `ContainerEngine.start`. Call `kill` at the end."""

    def __init__(
        self, engine: ContainerEngine, image: Image, layer: Path, environment: Mapping[str, str]
    ) -> None:
        self._engine = engine
        self._image = image
        self._layer = layer
        self._environment = environment
        self.log = Path(engine._directory.parent, f"{engine._directory.name}-{layer.name}.log")

    def start(self, command: Sequence[str]) -> None:
        """Run the command."""
        arguments = self._engine._entering(
            self._image,
            command,
            self._layer,
            self._environment,
            below=self._image.layer,
            isolated=True,
        )
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_SECONDS
        while not self._is_inside():
            assert self.process.poll() is None, self.log_text()
            assert time.monotonic() < deadline, self.log_text()
            time.sleep(0.02)

    def _is_inside(self) -> bool:
        """Return True if the first process has changed its root."""
        try:
            hosts = Path(f"/proc/{self.first_process()}/root/etc/hosts").read_text()
        except (OSError, IndexError):
            return False
        return hosts == HOSTS

    def put(self, path: str, text: str) -> None:
        """Copy an executable file into the running container, owned by root."""
        script = f"cat > {shlex.quote(path)}.new && chmod 755 {path}.new && mv {path}.new {path}"
        done = self._enter("sh", "-c", script, stdin=text)
        assert done.returncode == 0, done.stderr

    def first_process(self) -> str:
        """Return the ID of the container's first process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return children.read_text().split()[0]

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run another command in the container, like `docker exec`."""
        settings = {"HOME": self._image.directory, **self._environment}
        arguments = [f"{name}={value}" for name, value in settings.items()]
        user = ["setpriv", "--reuid=1000", "--regid=0", "--clear-groups"]
        return self._enter(*user, *("env", "-i", *arguments), *command, stdin=stdin)

    def _enter(self, *command: str, stdin: str) -> subprocess.CompletedProcess[str]:
        first = self.first_process()
        options = [f"--root=/proc/{first}/root", f"--wd=/proc/{first}/cwd"]
        return subprocess.run(
            ["nsenter", "--target", first, "--all", *options, *command],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def log_text(self) -> str:
        """Return the output of the container."""
        return self.log.read_text(errors="replace")

    def stop(self) -> int:
        """Stop the container with SIGTERM and return its exit status."""
        subprocess.run(["kill", "-TERM", self.first_process()], check=True)
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        """Kill the container."""
        # Linux clears the parent-death signal of `unshare --kill-child` when the user ID changes.
        with contextlib.suppress(OSError, IndexError):
            os.kill(int(self.first_process()), signal.SIGKILL)
        self.process.kill()
        self.process.wait()


def can_create_containers() -> bool:
    """Return True if this process may create chroots and networks."""
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("unshare") is not None
