"""Check the system packages that a make target needs, and install the missing ones.

Usage: python tests/prerequisites.py [COMMAND ...]; without COMMAND, for all commands.
       python tests/prerequisites.py --environment DIRECTORY; create a virtual environment with pip.

As root, missing packages are installed with apt. Otherwise the packages of the distribution are
unpacked below the work directory, and start scripts for their programs are written into its `bin`,
which the Makefiles add to the path. Exit status 1 if a package is not available; the output names the
command that installs it.

This script runs before an environment exists, so it uses the standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import re
import shutil
import ssl
import struct
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

# Directory of unpacked packages (`root`) and of their start scripts (`bin`).
TOOLS = Path(__file__).resolve().parent.parent / ".work" / "tools"
SYSTEM_CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
LIBRARIES = ("lib", "usr/lib")
ASK_SECONDS = 30.0


class Prerequisite(NamedTuple):
    """A program or package that make targets need.

    Attributes:
        problem: Function that takes the directory `TOOLS` and returns what is wrong, or "".
        installed: Alternative Debian packages: the first that the distribution has is installed.
        unpacked: Debian packages to unpack instead.
        programs: Programs by name, with patterns of their paths below the system root, best first.
    """

    commands: tuple[str, ...]
    problem: Callable[[Path], str]
    installed: tuple[str, ...]
    unpacked: tuple[str, ...]
    programs: Mapping[str, tuple[str, ...]]


class AptFailed(Exception):
    """apt failed; the message ends with its output."""


def main(arguments: Sequence[str], tools: Path = TOOLS) -> int:
    if arguments[:1] == ["--environment"]:
        make_environment(Path(arguments[1]), tools)
        return 0
    unknown = set(arguments) - {name for need in PREREQUISITES for name in need.commands}
    if unknown:
        print(f"no command is named {', '.join(sorted(unknown))} in tests/prerequisites.py")
        return 2
    wanted = [
        need for need in PREREQUISITES if not arguments or set(need.commands) & set(arguments)
    ]
    os.environ["PATH"] = os.pathsep.join([str(tools / "bin"), os.environ["PATH"]])
    missing = [need for need in wanted if not is_met(need, tools)]
    if missing and not any(map(is_chosen, problems(missing, tools))):
        install_missing(missing, tools)
    lacking = problems(missing, tools)
    for problem, need in lacking.items():
        command = f"apt-get install {need.installed[0]} (Debian; as root) brings it"
        print(f"{problem}{'' if is_chosen(problem) else f': {command}'}.")
    return 1 if lacking else 0


def problems(needs: Iterable[Prerequisite], tools: Path) -> dict[str, Prerequisite]:
    """Return the problems, each once."""
    return {problem: need for need in needs if (problem := need.problem(tools))}


def is_chosen(problem: str) -> bool:
    """Return True if an unsuitable program was chosen explicitly, so that no package helps."""
    return problem.startswith("JAVA_HOME=")


def is_met(need: Prerequisite, tools: Path) -> bool:
    """Return True if a prerequisite is met; add its installed program to the path if necessary."""
    if need.problem(tools):
        write_programs(need, Path("/"), tools)
    return not need.problem(tools)


def install_missing(missing: Sequence[Prerequisite], tools: Path) -> None:
    """Install or unpack packages; print the actions, and apt's output on errors."""
    if shutil.which("apt-get") is None:
        return
    is_root = os.geteuid() == 0
    for problem in problems(missing, tools):
        print(f"{problem}.")
    began = time.monotonic()
    try:
        if is_root:
            names = install(dict.fromkeys(need.installed for need in missing))
        else:
            names = unpack(dict.fromkeys(need.unpacked for need in missing), tools)
    except AptFailed as error:
        print(error)
        return
    for need in missing:
        if need.problem(tools):
            write_programs(need, Path("/") if is_root else tools / "root", tools)
    done = "Installed" if is_root else f"Unpacked below {tools}"
    print(f"{done}: {', '.join(names)} ({time.monotonic() - began:.0f} s)", flush=True)


def install(wanted: Iterable[tuple[str, ...]]) -> list[str]:
    """Install one package of each tuple with apt, as root.

    Raises:
        AptFailed: apt failed.
    """
    _apt("apt-get", "update", "-q")
    names = [_first_known(names) for names in wanted]
    print(f"apt-get install {' '.join(names)}", flush=True)
    _apt("apt-get", "install", "-q", "-y", "--no-install-recommends", *names)
    return names


def unpack(wanted: Iterable[tuple[str, ...]], tools: Path) -> list[str]:
    """Unpack one package of each tuple with the dependencies that the system lacks.

    apt uses its own package lists below `tools`, so root is not required.

    Raises:
        AptFailed: apt failed.
    """
    root, state, packages = tools / "root", tools / "apt", tools / "packages"
    for directory in (root, packages, state / "lists/partial", state / "archives/partial"):
        directory.mkdir(parents=True, exist_ok=True)
    settings = (f"Dir::State::Lists={state}/lists", f"Dir::Cache={state}", "Debug::NoLocking=1")
    own = tuple(f"-o{setting}" for setting in settings)
    _apt("apt-get", *own, "update", "-q")
    names = [_first_known(names, own) for names in wanted]
    plan = _apt("apt-get", *own, "install", "-s", "--no-install-recommends", *names)
    # A line with an old version in brackets is about a package that is already installed.
    new = re.findall(r"^Inst (\S+) \((\S+)", plan, re.MULTILINE)
    print(f"apt-get download {' '.join(names)} and what they need", flush=True)
    _apt("apt-get", *own, "download", *(f"{name}={version}" for name, version in new), at=packages)
    for package in sorted(packages.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
        package.unlink()
    turn_links(root)
    for runtime in root.glob("usr/lib/jvm/*/lib/security"):
        write_trust_store(runtime / "cacerts", root)
    return names


def _first_known(names: tuple[str, ...], options: tuple[str, ...] = ()) -> str:
    """Return the first package that the distribution has, or else the first package."""
    for name in names:
        command = ["apt-cache", *options, "show", name]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return name
    return names[0]


def _apt(*command: str, at: Path | None = None) -> str:
    lock = ("-o", "DPkg::Lock::Timeout=300")  # another apt may be running
    # With this run level, apt does not start installed services.
    settings = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", "RUNLEVEL": "1"}
    environment = {**os.environ, **settings}
    done = subprocess.run(
        [command[0], *lock, *command[1:]],
        cwd=at,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        output = "\n".join(done.stdout.splitlines()[-15:])
        raise AptFailed(f"{output}\n{command[0]} failed: see above.")
    return done.stdout


def turn_links(root: Path) -> None:
    """Redirect absolute links to their target below `root`, if it exists there."""
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            link = Path(directory, name)
            if link.is_symlink() and (target := os.readlink(link)).startswith("/"):
                path = root / target[1:]
                if os.path.lexists(path):
                    link.unlink()
                    link.symlink_to(path)


def write_programs(need: Prerequisite, root: Path, tools: Path) -> None:
    """Write scripts into `bin` that start the programs below `root` with their libraries."""
    for name, patterns in need.programs.items():
        found = [path for pattern in patterns for path in sorted(root.glob(pattern))]
        if not found:
            continue
        lines = ["#!/bin/sh"]
        if root != Path("/"):
            directories = [str(one) for path in LIBRARIES for one in root.glob(f"{path}/*-linux-*")]
            more = "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
            lines.append(f'export LD_LIBRARY_PATH="{":".join(directories)}{more}"')
        lines.append(f'exec "{found[0]}" "$@"')
        program = tools / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("\n".join(lines) + "\n")
        program.chmod(0o755)


def write_trust_store(path: Path, root: Path) -> None:
    """Write the system's certificates for an unpacked Java, whose own link is broken.

    The format is JKS: Java reads it without a password, and it can be written without Java.
    """
    if path.exists():
        return
    certificates = list(_certificates(root))
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        alias, kind = f"system-{number}".encode(), b"X.509"
        body += struct.pack(">IH", 2, len(alias)) + alias + struct.pack(">Q", 0)
        body += struct.pack(">H", len(kind)) + kind
        body += struct.pack(">I", len(certificate)) + certificate
    digest = hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()
    path.unlink(missing_ok=True)
    path.write_bytes(body + digest)


def _certificates(root: Path) -> Iterator[bytes]:
    """Return trusted certificates in DER: the system's, or those of an unpacked package."""
    bundle = Path(os.environ.get("SSL_CERT_FILE") or f"/{SYSTEM_CERTIFICATES}")
    files = [bundle] if bundle.exists() else sorted(root.glob("usr/share/ca-certificates/**/*.crt"))
    begin, end = ssl.PEM_HEADER, ssl.PEM_FOOTER
    for file in files:
        for text in re.findall(f"{begin}(.*?){end}", file.read_text(errors="replace"), re.DOTALL):
            yield base64.b64decode(text)


def make_environment(directory: Path, tools: Path = TOOLS) -> None:
    """Create a virtual environment with the pip of Python, or with an unpacked pip.

    An environment of another Python is deleted first, because its packages do not fit.
    """
    clear = not is_of_this_python(directory)
    if has_ensurepip():
        options = ["--clear"] if clear else []
        subprocess.run([sys.executable, "-m", "venv", *options, directory], check=True)
        return
    venv.create(directory, symlinks=True, clear=clear)
    (site,) = directory.glob("lib/python*/site-packages")
    with zipfile.ZipFile(pip_wheels(tools)[-1]) as wheel:
        wheel.extractall(site)


def is_of_this_python(directory: Path) -> bool:
    """Return True if there is no environment, or if it was created by this Python."""
    python = directory / "bin/python"
    if not python.exists():
        return not python.is_symlink()  # a link to a deleted Python
    command = [str(python), "-c", "import sys; print(sys.base_prefix, sys.version)"]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return output.strip() == f"{sys.base_prefix} {sys.version}"


def has_ensurepip() -> bool:
    return importlib.util.find_spec("ensurepip") is not None


def pip_wheels(tools: Path) -> list[Path]:
    """Return the unpacked wheels of pip."""
    return sorted((tools / "root/usr/share/python-wheels").glob("pip-*.whl"))


def problem_of_venv(tools: Path) -> str:
    return "" if has_ensurepip() or pip_wheels(tools) else "Python's venv module has no pip"


def problem_of_java(_tools: Path, *, newest: int | None, compiler: bool) -> str:
    """Check the Java that Spark uses: that of JAVA_HOME, or the first one on the path."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if program is None:
        return "Java is missing"
    label = f"JAVA_HOME={home}: unset it, or name another one; its Java" if home else program
    found = re.search(r'version "(\d+)', _output_of(program, "-version"))
    if found is None:
        return f"{label} does not start"
    version = int(found[1])
    if version < OLDEST_JAVA or (newest and version > newest):
        wanted = f"{OLDEST_JAVA} to {newest}" if newest else f"{OLDEST_JAVA} or newer"
        return f"{label} is of version {version}, wanted is {wanted}"
    if compiler and "jdk.compiler" not in _output_of(program, "--list-modules"):
        return f"{label} has no compiler"
    return ""


def problem_of_program(_tools: Path, *, name: str, title: str) -> str:
    return "" if shutil.which(name) else f"{title} is missing"


def _output_of(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


OLDEST_JAVA = 17
NEWEST_JAVA_OF_SPARK_4_0 = 21
JDK = ("openjdk-17-jdk-headless", "openjdk-21-jdk-headless")
JAVA_PROGRAMS = {
    name: tuple(f"usr/lib/jvm/java-{version}-openjdk*/bin/{name}" for version in (17, 21))
    for name in ("java", "javac")
}

PREREQUISITES = (
    Prerequisite(
        commands=(
            *("lint", "quick", "unit", "long", "clients"),
            *("demo", "spark", "compat", "examples-java"),
        ),
        problem=problem_of_venv,
        installed=("python3-venv",),
        unpacked=("python3-pip-whl",),
        programs={},
    ),
    Prerequisite(
        commands=("long", "clients", "demo", "spark"),
        problem=partial(problem_of_java, newest=None, compiler=False),
        installed=JDK,
        unpacked=JDK,
        programs=JAVA_PROGRAMS,
    ),
    # Spark 4.0 belongs to "unit" and "compat"; "long" installs what "clients" needs.
    Prerequisite(
        commands=("unit", "long", "clients", "compat", "examples-java"),
        problem=partial(problem_of_java, newest=NEWEST_JAVA_OF_SPARK_4_0, compiler=True),
        installed=JDK,
        unpacked=JDK,
        programs=JAVA_PROGRAMS,
    ),
    Prerequisite(
        commands=("unit", "long", "clients", "spark", "compat", "examples-java"),
        problem=partial(problem_of_program, name="mvn", title="Maven"),
        installed=("maven",),
        unpacked=("maven",),
        programs={"mvn": ("usr/share/maven/bin/mvn",)},
    ),
    Prerequisite(
        commands=("unit", "clients", "compat"),
        problem=partial(problem_of_program, name="kcat", title="kcat"),
        installed=("kcat",),
        unpacked=("kcat",),
        programs={"kcat": ("usr/bin/kcat",)},
    ),
    # Checks and runs the Homebrew formula.
    Prerequisite(
        commands=("clients", "compat"),
        problem=partial(problem_of_program, name="ruby", title="Ruby"),
        installed=("ruby",),
        unpacked=("ruby",),
        programs={"ruby": ("usr/bin/ruby",)},
    ),
    Prerequisite(
        commands=("unit", "long"),
        problem=partial(problem_of_program, name="etcd", title="etcd"),
        installed=("etcd-server",),
        unpacked=("etcd-server",),
        programs={"etcd": ("usr/bin/etcd",)},
    ),
    # They check the completion scripts.
    Prerequisite(
        commands=("unit", "long"),
        problem=partial(problem_of_program, name="zsh", title="zsh"),
        installed=("zsh",),
        unpacked=("zsh",),
        programs={"zsh": ("bin/zsh", "usr/bin/zsh")},
    ),
    Prerequisite(
        commands=("unit", "long"),
        problem=partial(problem_of_program, name="fish", title="fish"),
        installed=("fish",),
        unpacked=("fish",),
        programs={"fish": ("usr/bin/fish",)},
    ),
    Prerequisite(
        commands=("unit", "long"),
        problem=partial(problem_of_program, name="ip", title="iproute2"),
        installed=("iproute2",),
        unpacked=("iproute2",),
        programs={"ip": ("bin/ip", "usr/bin/ip")},
    ),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
