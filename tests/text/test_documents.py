"""Documents that nest too deeply are rejected with the same message by all readers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from kbroker.broker import Broker
from kbroker.cli.profiles import FILE_VARIABLE
from kbroker.text.documents import (
    NESTING_MAX,
    REQUEST_ELEMENTS_MAX,
    check_elements,
    read_json,
    read_request_json,
    read_toml,
)

from ..commands import Cli, invoke
from ..loop_latency import slowness
from ..wire import batch, connected, create_topic, produce

pytestmark = pytest.mark.usefixtures("no_settings_of_this_machine")


# Maximum duration of one step of the event loop for a request, on a typical CPU.
REJECTION_SECONDS_MAX = 0.03
LEVELS = [NESTING_MAX + 1, 900, 100_000]
MESSAGE = f"nested more than {NESTING_MAX} levels deep"


def lists(levels: int) -> str:
    return "[" * levels + "]" * levels


def objects(levels: int) -> str:
    return '{"a":' * levels + "0" + "}" * levels


def keys(levels: int) -> str:
    """Return a dotted key, which nests tables without brackets."""
    return ".".join(["a"] * levels) + " = 1\n"


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("form", [lists, objects])
def test_deeply_nested_json_is_rejected(form: object, levels: int) -> None:
    assert callable(form)
    with pytest.raises(ValueError, match=MESSAGE):
        read_json(form(levels))
    text = form(NESTING_MAX)
    assert json.dumps(read_json(text), separators=(",", ":")) == text


@pytest.mark.parametrize(
    "part", ["[],", '"",', '"a",', "[[],", '"\\"",', "1,", ',"', '{"":0},', '"\\\\",']
)
def test_request_with_too_many_elements_is_rejected_quickly(part: str) -> None:
    """Each document has the size of the largest request to the console."""
    text = "[" + part * ((1 << 20) // len(part))
    began = time.thread_time()
    with pytest.raises(ValueError, match=f"more than {REQUEST_ELEMENTS_MAX} elements"):
        read_request_json(text.encode())
    assert (time.thread_time() - began) / slowness() < REJECTION_SECONDS_MAX


@pytest.mark.parametrize("content", [",", "[", '\\"', "\\\\", "é,", '\\",\\"['])
@pytest.mark.parametrize("end", ['"', ""])
def test_long_strings_are_one_element(content: str, end: str) -> None:
    text = '{"value":"' + content * ((1 << 20) // len(content)) + end + "}"
    began = time.thread_time()
    check_elements(text)
    assert (time.thread_time() - began) / slowness() < REJECTION_SECONDS_MAX
    if end:
        assert read_request_json(text.encode()) == json.loads(text)


def test_request_with_half_of_surrogate_pair_is_rejected() -> None:
    for text in (r'{"name":"\ud800"}', r'["\uDFFF\ud800"]', r'{"\uda00":1}'):
        with pytest.raises(ValueError, match="surrogate"):
            read_request_json(text.encode())
    assert read_request_json(rb'["\ud83d\ude00", "\\ud800"]') == ["\U0001f600", r"\ud800"]


@pytest.mark.parametrize("levels", LEVELS[:2])
def test_deeply_nested_toml_is_rejected(levels: int) -> None:
    for text in (keys(levels), f"a = {lists(levels)}"):
        with pytest.raises(ValueError, match=MESSAGE):
            read_toml(text)
    assert read_toml(keys(NESTING_MAX))


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("config show --config FILE.toml", 1),
        ("serve --memory --port 0 --config FILE.toml", 3),
        ("serve --memory --port 0 --seed FILE.json", 3),
        ("serve --memory --port 0 --topics-file FILE.toml", 2),
        ("topic create --file FILE.toml", 2),
        ("topic create --file FILE.json", 2),
        ("group seek g --from-file FILE.json", 2),
    ],
)
def test_commands_reject_deeply_nested_files(
    tmp_path: Path, arguments: str, status: int, levels: int
) -> None:
    (tmp_path / "FILE.toml").write_text(f"a = {lists(levels)}")
    (tmp_path / "FILE.json").write_text(lists(levels))
    output = invoke(
        *arguments.replace("FILE", str(tmp_path / "FILE")).split(), status=status
    ).output
    assert MESSAGE in output


@pytest.mark.parametrize("levels", LEVELS)
def test_deeply_nested_profile_file_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, levels: int
) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(f"a = {lists(levels)}")
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    output = invoke("profile", "list", status=2).stderr
    assert MESSAGE in output
    assert "correct or delete the file" in output


@pytest.mark.parametrize("levels", LEVELS)
async def test_deeply_nested_lines_and_progress_files_are_rejected(
    cli: Cli, tmp_path: Path, levels: int
) -> None:
    await cli("topic", "create", "t", "u")
    line = f'{{"topic": "t", "value": {objects(levels)}}}\n'
    output = await cli("topic", "produce", "--json", stdin=line, status=1)
    assert f"line 1: invalid JSON: {MESSAGE}" in output.stderr
    output = await cli("replay", "--ndjson", "-", "--to-topic", "t", stdin=line, status=1)
    assert MESSAGE in output.stderr
    progress = tmp_path / "progress"
    progress.write_text(lists(levels))
    flags = ("--to-topic", "u", "--progress", str(progress))
    assert MESSAGE in (await cli("replay", "t", *flags, status=1)).stderr


@pytest.mark.parametrize("levels", LEVELS)
async def test_deeply_nested_value_has_no_fields_for_filters(
    cli: Cli, broker: Broker, levels: int
) -> None:
    """Filters and audits by field treat such a value as one without the field."""
    async with connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        values = [f'{{"id": {lists(levels)}}}'.encode(), b'{"id": 1}']
        assert (await produce(wire, topic, batch(values))).error_code == 0
    found = await cli("topic", "consume", "t", "-o", ":end", "--filter-field", "id=1", "-f", "%o")
    assert found.stdout == "1"
    assert "2 records" in (await cli("audit", "t", "--unique-by", "field:id")).stdout
