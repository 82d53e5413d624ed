"""Lint of the language of docstrings, comments, test names and documentation pages.

Usage: python -m tests.prose [--update]

Each check finds a pattern that readers had to decode: a docstring that does not begin with a noun or a
verb, an actor without a name, a test name that is no sentence, a sentence of more than 35 words.
`tests/prose.toml` lists the findings that are allowed, as a number per file. A file with more findings
than listed fails, and so does a file with fewer: `--update` lowers the number, and never raises it.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from .repository import ROOT, tracked_files

ALLOWED = Path(__file__).with_name("prose.toml")
SENTENCE_WORDS_MAX = 35

_OPENING = re.compile(r"(What|Who|Whoever|Whether|Where|How|Of|As|The same|Those|That|Their|Its)\b")
_PHRASE = re.compile(
    r"\b(anew|is told|are told|hears? of|those who|one that|who (has|is|asks|wants|comes|goes|waits))\b"
)
_TEST_NAME = re.compile(r"test_(what|who|where|how|whose|nor|a_[a-z]+_that)_")
# Every finding in a module matches one of these. A search is 20 times as fast as a parser.
_SUSPECTS = (
    re.compile(rf"[\"']\s*{_OPENING.pattern}"),
    _PHRASE,
    re.compile(rf"def {_TEST_NAME.pattern}"),
)
_FENCE = re.compile(r"(?ms)^ *(```|~~~).*?^ *\1")
_COMMENT = re.compile(r"(?s)<!--.*?-->")
_HEADER = """\
# Findings of tests/prose.py that are allowed, per file. Only smaller numbers are accepted:
# after an improvement run `python -m tests.prose --update`.

[allowed]
"""


class Finding(NamedTuple):
    """One place that breaks a rule of language."""

    line: int
    problem: str


def main(arguments: list[str]) -> int:
    """Check all tracked files, and print what is not allowed. Return the exit status."""
    allowed = tomllib.loads(ALLOWED.read_text())["allowed"] if ALLOWED.exists() else {}
    found = {path: findings for path in checked_files() if (findings := check(ROOT / path))}
    if arguments == ["--update"]:
        ALLOWED.write_text(_HEADER + updated(allowed, found))
        return 0
    problems = list(compare(allowed, found))
    print("\n".join(problems) if problems else f"prose: {sum(allowed.values())} findings allowed")
    return 1 if problems else 0


def checked_files() -> list[str]:
    """Return the paths of Python files, README and documentation pages that are checked."""
    listed = tracked_files("*.py", "README.md", "docs/*.md")
    return [path for path in listed if not path.startswith("docs/dev/")]


def check(path: Path) -> list[Finding]:
    """Return the findings of one file."""
    text = path.read_text(encoding="utf-8")
    found = check_page(text) if path.suffix == ".md" else check_module(text)
    return sorted(found)


def check_module(text: str) -> Iterator[Finding]:
    """Check docstrings, comments and test names of a Python module."""
    if not any(suspect.search(text) for suspect in _SUSPECTS):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield from _check_text(node.value.value, node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _TEST_NAME.match(
            node.name
        ):
            yield Finding(node.lineno, f"test name {node.name}")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (match := _PHRASE.search(token.string)):
            yield Finding(token.start[0], f"comment with {match[0]!r}")


def _check_text(text: str, line: int) -> Iterator[Finding]:
    if match := _OPENING.match(text):
        yield Finding(line, f"docstring that begins with {match[0]!r}")
    for match in _PHRASE.finditer(text):
        yield Finding(line + text[: match.start()].count("\n"), f"docstring with {match[0]!r}")


def check_page(text: str) -> Iterator[Finding]:
    """Check the sentences of a page in Markdown, without code, tables and comments."""
    for pattern in (_FENCE, _COMMENT):
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    paragraph: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip() and not re.match(r"\s*([-*#|>]|\d+\.) ?", line):
            paragraph.append(line)
            continue
        yield from _check_paragraph(" ".join(paragraph), number - len(paragraph))
        is_prose = line.strip() and not re.match(r"\s*[#|]", line)
        paragraph = [re.sub(r"^\s*([-*>]|\d+\.) ?", "", line)] if is_prose else []


def _check_paragraph(paragraph: str, line: int) -> Iterator[Finding]:
    for match in _PHRASE.finditer(paragraph):
        yield Finding(line, f"sentence with {match[0]!r}")
    plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", paragraph))
    for sentence in re.split(r"(?<=[.!?:;])\s+", plain):
        if (words := len(sentence.split())) > SENTENCE_WORDS_MAX:
            yield Finding(line, f"sentence of {words} words: {' '.join(sentence.split()[:8])} ...")


def compare(allowed: Mapping[str, int], found: Mapping[str, list[Finding]]) -> Iterator[str]:
    """Yield a line for each file whose number of findings is not the allowed one."""
    for path in sorted({*allowed, *found}):
        findings, limit = found.get(path, []), allowed.get(path, 0)
        if len(findings) > limit:
            for each in findings:
                yield f"{path}:{each.line}: {each.problem}"
            yield f"{path}: {len(findings)} findings, {limit} allowed by tests/prose.toml"
        elif len(findings) < limit:
            yield (
                f"{path}: {len(findings)} findings, fewer than the {limit} that are allowed; "
                "run: python -m tests.prose --update"
            )


def updated(allowed: Mapping[str, int], found: Mapping[str, list[Finding]]) -> str:
    """Return the rows of the list. Numbers fall, and never rise."""
    rows = {path: min(limit, len(found.get(path, []))) for path, limit in allowed.items()}
    return "".join(f'"{path}" = {count}\n' for path, count in sorted(rows.items()) if count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
