"""Commands, links and examples of the documentation."""

import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from kbroker.handlers.registry import load_apis
from kbroker.testing import LocalBroker

from .pages import check_page, commands_of, run_page

ROOT = Path(__file__).parent.parent
KINDS = ("tutorials", "how-to", "reference", "explanation", "project")
DOCS = [page for kind in KINDS for page in sorted((ROOT / "docs" / kind).glob("*.md"))]
PAGES = [
    ROOT / "README.md",
    *DOCS,
    *sorted((ROOT / "docs/dev").glob("*.md")),
    ROOT / "compat-tests/README.md",
]

# Pages whose commands run here. tests/cli runs reference/cli.md, compat-tests how-to/migrate.md,
# and long_pages.py the pages with many commands.
RUN = [
    "tutorials/quickstart",
    "how-to/audit",
    "how-to/replay",
    "how-to/cluster",
    "explanation/kafka-concepts",
    "how-to/operate",
    "how-to/topics-and-groups",
    "explanation/performance",
    "explanation/replication",
]


@pytest.mark.slow
def test_readme_program_prints_the_same_on_every_run(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, program = text.split("```python\n")[:2]
    assert "pip install . kafka-python" in before, "the client that the program imports"
    with LocalBroker() as broker:
        path = tmp_path / "program.py"
        path.write_text(
            program.split("```")[0].replace("localhost:9092", broker.bootstrap_servers),
            encoding="utf-8",
        )
        printed = [
            subprocess.run(
                [sys.executable, path], capture_output=True, check=True, encoding="utf-8"
            ).stdout
            for _ in range(2)
        ]
    assert printed == ["[b'hi']\n"] * 2


def test_apis_page_lists_exactly_served_apis() -> None:
    text = (ROOT / "docs/reference/apis.md").read_text()
    table = text.split("<!-- apis:")[1].split("<!-- /apis -->")[0]
    rows = re.findall(r"\| (\d+) \| (\w+) \| ([\d-]+) \|", table)
    served = []
    for api in load_apis().values():
        first, last = api.versions.start, api.versions.stop - 1
        versions = f"{first}-{last}" if last > first else str(first)
        served.append((str(int(api.key)), api.key.api_name, versions))
    assert rows == served


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_resolve(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_headings_resolve(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())
    missing = [
        f"{link}#{heading}"
        for link, heading in links
        if heading not in headings(page.parent / link if link else page)
    ]
    assert not missing


def headings(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles)
    return {each.replace(" ", "-") for each in plain}


def test_site_navigation_lists_every_page_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"^ +- ([\w/-]+\.md)$", nav, re.MULTILINE)
    paths = [page.relative_to(ROOT / "docs").as_posix() for page in DOCS]
    assert sorted(listed) == sorted(["index.md", "project/changelog.md", *paths])


def test_pages_outside_navigation_are_developer_pages() -> None:
    pages = {path for path in (ROOT / "docs").rglob("*.md") if path not in DOCS}
    assert {path.parent for path in pages} == {ROOT / "docs" / "dev"}


def load_llms() -> ModuleType:
    """Return the module that creates llms.txt; it is no part of a package."""
    spec = spec_from_file_location("llms", ROOT / "docs/site/llms.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_llms_txt_describes_every_page_of_navigation_in_one_line() -> None:
    llms = load_llms()
    nav = yaml.safe_load("nav:\n" + (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1])["nav"]
    texts = {page.relative_to(ROOT / "docs").as_posix(): page.read_text() for page in DOCS}
    texts["index.md"] = (ROOT / "README.md").read_text()
    texts["project/changelog.md"] = (ROOT / "CHANGELOG.md").read_text()
    pages = {file: llms.Page(f"{file}/", text) for file, text in texts.items()}
    lines = llms.list_pages("kbroker", "A broker", nav, pages).splitlines()
    assert lines[:3] == ["# kbroker", "", "> A broker"]
    assert "## How-to guides: Run a cluster" in lines
    rows = [re.fullmatch(r"- \[([^]]+)\]\((.+)/\): (.{10,300})", line) for line in lines]
    assert sorted(row[2] for row in rows if row) == sorted(texts)
    assert not [line for line, row in zip(lines, rows, strict=True) if line[:1] == "-" and not row]
    joined = llms.join_pages(nav, pages)
    assert all(text.strip() in joined for text in texts.values())


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("# T\n\nOne [two](x.md)\nthree. Four.\n", "One two three."),
        ("# T\n\n```sh\na\n\nb\n```\n\nProse: `x` runs.\n", "Prose"),
        (
            "# T\n\n* item\n\n| a |\n|---|\n\nUses 3.11 or later. kbroker too.",
            "Uses 3.11 or later.",
        ),
        ("# T\n", ""),
    ],
)
def test_summary_of_page_is_its_first_sentence(markdown: str, expected: str) -> None:
    assert load_llms().summary(markdown) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [RUN[0], *(pytest.param(name, marks=pytest.mark.long) for name in RUN[1:])]
)
def test_commands_of_page_print_documented_output(name: str, tmp_path: Path) -> None:
    assert check_page(name, tmp_path) >= 5


@pytest.mark.slow
def test_ci_snippets_contain_documented_command(tmp_path: Path) -> None:
    """The CI snippets contain the command that the page runs."""
    section = (
        (ROOT / "docs/how-to/test-your-app.md").read_text().split("## In CI\n")[1].split("\n## ")[0]
    )
    _, command = commands_of(section)
    github, gitlab, make = re.findall(r"(?ms)^```(?:yaml|make)\n(.*?)^```$", section)
    assert command.text == "kbroker run --topic orders:3 -- pytest -q"
    assert command.text in gitlab
    assert command.text in make
    assert command.text.partition(" -- ")[2] in github
    directory = tmp_path / "page"
    directory.mkdir()
    problems = run_page(section, directory)
    assert not problems, "\n\n".join(problems)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("```console\n$ echo one two\none three\n```\n", "one two"),
        ("```console\n$ no-such-command\n```\n", "not found"),
        ("```sh\necho begun\nfalse\necho never\n```\n", "begun"),
        ("```python\nprint('begun')\nraise SystemExit(1)\n```\n", "begun"),
    ],
)
def test_page_checker_reports_wrong_page(block: str, expected: str, tmp_path: Path) -> None:
    (problems,) = run_page(f"{block}```sh\ntrue\n```\n", tmp_path)
    assert expected in problems.partition("\n")[2]
    assert "never" not in problems.partition("failed:")[2]


def test_make_targets_in_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
