"""The GitHub action, the feature of development containers and the Homebrew formula.

The tests run their scripts as GitHub, an image build and Homebrew do, and check all files with linters.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from harness.channels import (
    ACTION,
    INSTALL_SECONDS,
    channel_program,
    clean_environment,
    copy_checkout,
    output_of,
    write_and_read,
)
from harness.places import COMPAT, ROOT

from release.homebrew import formula
from tests.image.containerfile import (
    ContainerEngine,
    ContainersUnavailable,
    can_create_containers,
)

CLIENT = "installation"
PYTHON = str(Path(sys.executable).resolve())
FEATURE = ROOT / "release/channels/devcontainer/src/kbroker"
PAGE = (ROOT / "docs/how-to/install.md").read_text()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("checkout") / "kbroker")


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    return clean_environment(tmp_path / "home") | {"PIP_NO_COMPILE": "1"}


class Step(NamedTuple):
    """A step of the action, with the values of its expressions inserted."""

    variables: dict[str, str]
    script: str


def steps_of_action(inputs: Mapping[str, str]) -> list[Step]:
    """Return the steps of the action for some inputs and the default values of the others."""
    action = yaml.safe_load((ROOT / ACTION / "action.yml").read_text())
    assert inputs.keys() <= action["inputs"].keys()
    values = {name: row["default"] for name, row in action["inputs"].items()} | inputs
    return [
        Step(
            {
                name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: values[found[1]], text)
                for name, text in step["env"].items()
            },
            step["run"],
        )
        for step in action["runs"]["steps"]
    ]


class Runner:
    """Runner of GitHub that executes the steps of the action, each in its own process."""

    def __init__(self, checkout: Path, directory: Path, variables: Mapping[str, str]) -> None:
        self.files = {name: directory / name for name in ("OUTPUT", "ENV", "PATH")}
        for file in self.files.values():
            file.touch()
        own = {f"GITHUB_{name}": str(file) for name, file in self.files.items()}
        self._directory = directory
        self._variables = {**variables, **own}
        self._variables["RUNNER_TEMP"] = str(directory)
        self._variables["RUNNER_OS"] = "Linux"
        self._variables["GITHUB_ACTION_PATH"] = str(checkout / ACTION)

    def variables(self) -> dict[str, str]:
        """Return the variables of the next step."""
        added = self.files["PATH"].read_text().splitlines()
        path = os.pathsep.join([*reversed(added), self._variables["PATH"]])
        exported = dict(line.split("=", 1) for line in self.files["ENV"].read_text().splitlines())
        return {**self._variables, **exported, "PATH": path}

    def run(self, step: Step) -> None:
        """Run a step. Fails with its output if it fails."""
        log = self._directory / "step.log"
        with log.open("wb") as file:
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step.script],
                env=self.variables() | step.variables,
                cwd=self._directory,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=INSTALL_SECONDS,
                check=False,
            )
        if done.returncode != 0:
            raise AssertionError(log.read_text())

    def stop(self) -> None:
        """Stop the broker, as a runner does at the end of a job."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if f"{self._directory}/kbroker.address".encode() in command:
                os.kill(int(process.name), 15)


@pytest.fixture
def runner(checkout: Path, variables: dict[str, str], tmp_path: Path) -> Iterator[Runner]:
    directory = tmp_path / "runner"
    directory.mkdir()
    runner = Runner(checkout, directory, variables)
    yield runner
    runner.stop()


def test_action_starts_broker_for_following_steps(runner: Runner, tmp_path: Path) -> None:
    topics = "hello:3\nusers:1:cleanup.policy=compact\n"
    for step in steps_of_action({"port": "0", "topics": topics}):
        runner.run(step)
    variables = runner.variables()
    address = variables["KAFKA_BOOTSTRAP_SERVERS"]
    assert runner.files["OUTPUT"].read_text() == f"bootstrap-servers={address}\n"
    variables["KBROKER_BOOTSTRAP"] = address
    write_and_read(["kbroker"], variables, tmp_path)
    listed = output_of(["kbroker", "topic", "list"], variables, tmp_path)
    assert {"hello", "users"} <= set(listed.split())

    _, start = steps_of_action({"args": "--no-such-option", "port": "0"})
    (runner.files["OUTPUT"].parent / "kbroker.address").unlink()
    with pytest.raises(AssertionError, match="No such option") as failed:
        runner.run(start)
    assert "::error::kbroker did not start" in str(failed.value)


def test_action_installs_given_version_with_extras(runner: Runner, tmp_path: Path) -> None:
    """A stand-in for pip shows the package, because no version is published."""
    programs = tmp_path / "programs"
    programs.mkdir()
    python = programs / "python3"
    python.write_text(
        f"""#!/bin/sh
case "$*" in *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && exit ;; esac
case "$*" in *"-m pip"*) echo "$*" && exit 3 ;; esac
exec {PYTHON} "$@"
"""
    )
    python.chmod(0o755)
    install, _ = steps_of_action({"version": "1.2.3", "extras": "registry,console"})
    install.variables["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    with pytest.raises(AssertionError, match=r"kbroker\[registry,console\]==1\.2\.3\n"):
        runner.run(install)


def test_action_without_suitable_python_names_setup_action(runner: Runner, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text("#!/bin/sh\nexit 1\n")
    (programs / "python3").chmod(0o755)
    install, _ = steps_of_action({})
    install.variables["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    with pytest.raises(AssertionError, match="add a step with actions/setup-python"):
        runner.run(install)


def test_linters_accept_action_and_documented_workflows(
    variables: dict[str, str], tmp_path: Path
) -> None:
    workflows = tmp_path / ".github/workflows"
    workflows.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    shutil.copytree(ROOT / ACTION, tmp_path / ACTION)
    blocks = re.findall(r"(?ms)^```yaml\n(on:.*?)^```$", PAGE)
    assert len(blocks) == 2
    # actionlint compares the inputs with those of a local action.
    own = re.compile(r"OWNER/kbroker/(\S+)@\S+")
    for number, block in enumerate(blocks):
        (workflows / f"{number}.yml").write_text(own.sub(r"./\1", block))
    path = f"{Path(channel_program('shellcheck')).parent}{os.pathsep}{os.environ['PATH']}"
    variables["PATH"] = path
    output_of([channel_program("actionlint")], variables, tmp_path)
    zizmor = [channel_program("zizmor"), "--offline", "--no-progress", tmp_path / ACTION]
    output_of(zizmor, variables, tmp_path)
    for number, step in enumerate(steps_of_action({})):
        script = tmp_path / f"{number}.sh"
        script.write_text(f"#!/bin/bash\nset -eo pipefail\n{step.script}")
        output_of([channel_program("shellcheck"), script], variables, tmp_path)

    (workflows / "0.yml").write_text(own.sub(r"./\1", blocks[0]).replace("topics:", "topic:"))
    with pytest.raises(AssertionError, match='input "topic" is not defined'):
        output_of([channel_program("actionlint")], variables, tmp_path)


def test_scripts_of_feature_pass_shellcheck(variables: dict[str, str], tmp_path: Path) -> None:
    install = (FEATURE / "install.sh").read_text()
    (entrypoint,) = re.findall(r"(?ms)^cat > \S+ << 'END'\n(.*?)^END$", install)
    (tmp_path / "entrypoint").write_text(entrypoint)
    files = [FEATURE / "install.sh", tmp_path / "entrypoint"]
    output_of([channel_program("shellcheck"), *files], variables, tmp_path)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ContainerEngine]:
    if not can_create_containers():
        pytest.skip("cannot create containers: root permissions on Linux and unshare are required")
    try:
        engine = ContainerEngine(tmp_path, ROOT)
    except ContainersUnavailable as error:
        pytest.skip(f"cannot create containers: {error}")
    yield engine
    engine.close()


FEATURE_STEPS = f"""
FROM debian
COPY . /source
COPY {FEATURE.relative_to(ROOT)} /feature
RUN PIP_NO_COMPILE=1 PACKAGE=/source TOPICS='hello:3 users' ARGUMENTS='--nodes 2' sh /feature/install.sh
"""


def test_feature_starts_broker_with_container(engine: ContainerEngine) -> None:
    image = engine.build(FEATURE_STEPS)
    command = ["sh", "-c", "/usr/local/share/kbroker/entrypoint && exec sleep infinity"]
    container = engine.start(image, command)
    try:

        def output_inside(*command: str) -> str:
            done = container.run("kbroker", *command)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        output_inside("health", "--wait", "60s")
        assert {"hello", "users"} <= set(output_inside("topic", "list").split())
        assert "2" in output_inside("cluster", "info")
        output_inside("topic", "produce", "hello", "hi")
        assert "hi" in output_inside("topic", "consume", "hello", "-o", ":end")
    finally:
        container.kill()


def test_homebrew_formula_installs_tested_broker(
    checkout: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    python = tmp_path / "python/bin"
    python.mkdir(parents=True)
    (python / "python").symlink_to(PYTHON)
    archive = tmp_path / "kbroker-0.1.0.tar.gz"
    archive.write_bytes(b"the archive")
    text = formula(archive, "https://example.org/kbroker-0.1.0.tar.gz", "https://example.org")
    file = tmp_path / "kbroker.rb"
    file.write_text(text)
    assert "<" not in text.replace("class Kbroker < Formula", "")
    ruby = ["ruby", "--disable=gems"]
    assert output_of([*ruby, "-wc", file], variables, tmp_path) == "Syntax OK\n"
    prefix = tmp_path / "prefix"
    prefix.mkdir()
    run = [*ruby, COMPAT / "harness/formula.rb", file, checkout, prefix, python.parent]
    printed = output_of(run, variables, tmp_path)
    assert f"service {prefix}/bin/kbroker serve --data-dir {prefix}/var/kbroker" in printed
    assert f"\nsha256 {hashlib.sha256(b'the archive').hexdigest()}\n" in printed
