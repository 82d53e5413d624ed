"""Check and installation of system packages, with a fake apt."""

from __future__ import annotations

import os
import ssl
import subprocess
import tomllib
import zipfile
from functools import partial
from pathlib import Path

import pytest

from . import prerequisites

ROOT = Path(__file__).parent.parent
CERTIFICATE = f"{ssl.PEM_HEADER}\naGVsbG8=\n{ssl.PEM_FOOTER}\n"

APT = """#!/bin/sh
echo "$(basename "$0") $*" >> {calls}
case "$*" in
*" update"*) exit {update};;
*"install -s"*) echo 'Inst libc6 [2.36-8] (2.36-9 Debian:12 [amd64])'
                echo 'Inst sample (1.2-3 Debian:12 [amd64])';;
*download*) touch sample.deb;;
*install*) cp -r {packed}/. {system};;
esac
"""
DPKG = """#!/bin/sh
cp -r {packed}/. "$3"
"""
JAVA = """#!/bin/sh
test "$1" = --list-modules && echo {modules} || echo 'openjdk version "{version}"' >&2
"""


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def sample(system: Path) -> prerequisites.Prerequisite:
    """Create a program `sample` in opt/sample of a system, which needs its library to start."""
    return prerequisites.Prerequisite(
        commands=("demo",),
        problem=partial(prerequisites.problem_of_program, name="sample", title="Sample"),
        installed=("sample",),
        unpacked=("sample",),
        programs={"sample": (f"{str(system)[1:]}/opt/sample", "opt/sample")},
    )


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    return tmp_path / "tools"


class Machine:
    """A path with a fake apt that has one package, `sample`."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.system, self.calls = directory / "system", directory / "calls"
        self._directory, self._monkeypatch = directory, monkeypatch
        self.system.mkdir()
        packed = directory / "packed"
        write_program(packed / "opt/sample", '#!/bin/sh\necho "$1 $LD_LIBRARY_PATH"\n')
        (packed / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
        monkeypatch.setenv("PATH", f"{directory / 'path'}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(prerequisites, "PREREQUISITES", (sample(self.system),))

    def has_apt(self, *, user: int, update: int = 0) -> None:
        places = {
            "calls": self.calls,
            "packed": self._directory / "packed",
            "system": self.system,
            "update": update,
        }
        for name in ("apt-get", "apt-cache"):
            write_program(self._directory / "path" / name, APT.format(**places))
        write_program(self._directory / "path" / "dpkg-deb", DPKG.format(**places))
        self._monkeypatch.setattr(os, "geteuid", lambda: user)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def run_sample(tools: Path) -> list[str]:
    return subprocess.check_output([tools / "bin/sample", "hello"], text=True).split()


def test_prerequisites_cover_all_test_parts() -> None:
    budget = tomllib.loads((ROOT / "tests/budget.toml").read_text())
    looked_at = {command for need in prerequisites.PREREQUISITES for command in need.commands}
    assert set(budget["part"]) <= looked_at
    assert prerequisites.main(["wrong"]) == 2


def test_installed_prerequisites_stay_unchanged(machine: Machine, tools: Path) -> None:
    machine.has_apt(user=0)
    write_program(machine.system.parent / "path/sample", "#!/bin/sh\n")
    assert prerequisites.main(["demo"], tools) == 0
    assert not machine.calls.exists()
    assert not tools.exists()


def test_root_installs_packages_with_apt(
    machine: Machine, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.has_apt(user=0)
    assert prerequisites.main(["demo"], tools) == 0
    assert "Sample is missing.\napt-get install sample\n" in capsys.readouterr().out
    # The program was not on the path, and it uses the system's libraries.
    assert run_sample(tools)[:1] == ["hello"]
    assert not (tools / "root").exists()


def test_user_unpacks_packages_below_work_directory(machine: Machine, tools: Path) -> None:
    machine.has_apt(user=1000)
    assert prerequisites.main(["demo"], tools) == 0
    assert run_sample(tools) == ["hello", str(tools / "root/usr/lib/x86_64-linux-gnu")]
    calls = machine.calls.read_text()
    assert "sample=1.2-3" in calls
    assert "libc6=" not in calls, "it is there, if older"
    assert not any(machine.system.iterdir())
    machine.calls.unlink()
    assert prerequisites.main(["demo"], tools) == 0
    assert not machine.calls.exists(), "nothing is brought twice"


@pytest.mark.parametrize("user", [0, 1000])
def test_unavailable_package_is_named_with_install_command(
    user: int, machine: Machine, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.has_apt(user=user, update=100)
    assert prerequisites.main(["demo"], tools) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Sample is missing: apt-get install sample (Debian; as root) brings it."


def test_missing_packages_are_named_without_apt(
    machine: Machine, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tools))
    assert prerequisites.main([], tools) == 1


@pytest.mark.parametrize(
    ("version", "modules", "newest", "problem"),
    [
        ("17.0.15", "jdk.compiler@17", 21, ""),
        ("21", "jdk.compiler@21", None, ""),
        ("25.0.1", "jdk.compiler@25", None, ""),
        ("25.0.1", "jdk.compiler@25", 21, "is of version 25, wanted is 17 to 21"),
        ("11.0.2", "jdk.compiler@11", None, "is of version 11, wanted is 17 or newer"),
        ("17.0.15", "java.base@17", 21, "has no compiler"),
        ("none", "", 21, "does not start"),
    ],
)
def test_java_version_is_checked(
    version: str,
    modules: str,
    newest: int | None,
    problem: str,
    tools: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = write_program(
        tmp_path / "home/bin/java", JAVA.format(version=version, modules=modules)
    )
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    found_problem = prerequisites.problem_of_java(tools, newest=newest, compiler=True)
    assert bool(found_problem) is bool(problem)
    assert problem in found_problem


def test_unsuitable_java_home_is_reported(
    machine: Machine,
    tools: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Java on the path is ignored then, and no package helps."""
    machine.has_apt(user=0)
    write_program(machine.system.parent / "path/java", JAVA.format(version="17.0.1", modules=""))
    check = partial(prerequisites.problem_of_java, newest=None, compiler=False)
    java = sample(machine.system)._replace(problem=check, programs={})
    monkeypatch.setattr(prerequisites, "PREREQUISITES", (java,))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert prerequisites.main(["demo"], tools) == 0
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert prerequisites.main(["demo"], tools) == 1
    message = "JAVA_HOME=/nowhere: unset it, or name another one; its Java does not start.\n"
    assert capsys.readouterr().out == message
    assert not machine.calls.exists()


def test_absolute_links_are_redirected_below_root(tmp_path: Path) -> None:
    for name in ("etc/java", "usr/lib/java"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/java/settings").write_text("unpacked")
    links = {
        "usr/lib/java/settings": "/etc/java/settings",
        "usr/lib/java/etc": "/etc/java",
        "usr/lib/java/passwd": "/etc/passwd",
        "usr/lib/java/beside": "settings",
    }
    for link, target in links.items():
        (tmp_path / link).symlink_to(target)
    prerequisites.turn_links(tmp_path)
    for name in ("settings", "etc/settings", "beside"):
        assert (tmp_path / "usr/lib/java" / name).read_text() == "unpacked"
    assert os.readlink(tmp_path / "usr/lib/java/passwd") == "/etc/passwd"


def test_unpacked_java_trusts_system_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, store = tmp_path / "bundle.crt", tmp_path / "cacerts"
    bundle.write_text("# two\n" + 2 * CERTIFICATE)
    store.symlink_to(tmp_path / "nowhere")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    prerequisites.write_trust_store(store, tmp_path)
    body = store.read_bytes()
    assert body[:12] == bytes.fromhex("feedfeed 00000002 00000002")
    assert body.count(b"X.509\x00\x00\x00\x05hello") == 2
    store.write_bytes(b"of the system")
    prerequisites.write_trust_store(store, tmp_path)
    assert store.read_bytes() == b"of the system"


def test_environment_gets_unpacked_pip_if_python_lacks_it(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prerequisites.problem_of_venv(tools) == "" or not prerequisites.has_ensurepip()
    monkeypatch.setattr(prerequisites, "has_ensurepip", lambda: False)
    assert prerequisites.problem_of_venv(tools) == "Python's venv module has no pip"
    wheel = tools / "root/usr/share/python-wheels/pip-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("pip/__init__.py", "")
        packed.writestr("pip/__main__.py", "print('unpacked pip')")
    assert prerequisites.problem_of_venv(tools) == ""
    prerequisites.make_environment(tmp_path / "environment", tools)
    python = tmp_path / "environment/bin/python"
    assert subprocess.check_output([python, "-m", "pip"], text=True) == "unpacked pip\n"


@pytest.mark.long
@pytest.mark.parametrize("is_gone", [False, True])
def test_environment_of_another_python_is_replaced(
    tmp_path: Path, tools: Path, is_gone: bool
) -> None:
    directory = tmp_path / "environment"
    prerequisites.make_environment(directory, tools)
    (site,) = directory.glob("lib/python*/site-packages")
    package = site / "of_its_python.so"
    package.touch()
    prerequisites.make_environment(directory, tools)
    assert package.exists(), "what is of this Python stays"
    python = directory / "bin/python"
    python.unlink()
    if is_gone:
        python.symlink_to(tmp_path / "nowhere")
    else:
        python.write_text("#!/bin/sh\necho another one\n")
        python.chmod(0o755)
    prerequisites.make_environment(directory, tools)
    assert not package.exists()
    assert subprocess.check_output([python, "-c", "print(1)"], text=True) == "1\n"
