"""Options, environment variables and files that settings are read from."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.config import (
    ConfigError,
    parse_properties,
    parse_toml,
    read_environment,
    read_file,
    read_options,
)


def test_properties_file_is_parsed_like_java() -> None:
    text = (
        "# comment\n! comment\n\n"
        "a=1\nb : 2\nc 3\n  d\t=\t4  \ne\nf=\n"
        "long=one,\\\n   two,\\\n   # three\n"
        "path=C\\:\\\\data\\tx\n"
        "key\\ with\\=signs=v\n"
        "word=caf\\u00e9\\q\n"
        "twice=1\r\ntwice=2\r\n"
        "even=x\\\\\n"
        "last=y\\"
    )
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "4  ",
        "e": "",
        "f": "",
        "long": "one,two,# three",
        "path": "C:\\data\tx",
        "key with=signs": "v",
        "word": "caféq",
        "twice": "2",
        "even": "x\\",
        "last": "y",
    }


@pytest.mark.parametrize("escape", ["\\u00", "\\u00gg", "\\u"])
def test_invalid_escape_error_names_line(escape: str) -> None:
    with pytest.raises(ConfigError, match="line 3: "):
        parse_properties(f"# x\na=1\nb={escape}\n")


def test_toml_tables_become_dotted_names() -> None:
    text = """
    "max.connections" = 5
    log.dirs = "data"
    listeners = ["A://:1", "B://:2"]
    [log]
    retention.ms = 1000
    preallocate = true
    cleaner.min.cleanable.ratio = 0.25
    """
    # One key cannot be both a dotted key and a table header's: write the table only.
    assert parse_toml(text.replace('log.dirs = "data"', "")) == {
        "max.connections": "5",
        "listeners": "A://:1,B://:2",
        "log.retention.ms": "1000",
        "log.preallocate": "true",
        "log.cleaner.min.cleanable.ratio": "0.25",
    }
    with pytest.raises(ConfigError, match="quote a name"):
        parse_toml("max.connections = 5\nmax.connections.per.ip = 2")


@pytest.mark.parametrize("text", ["a = 2020-01-01", "a = [[1]]", "[[a]]\nb = 1"])
def test_unsupported_toml_values_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^a: expected a string"):
        parse_toml(text)


def test_environment_variables_map_to_settings() -> None:
    environ = {
        "KBROKER_CFG_LOG_RETENTION_MS": "1",
        "KBROKER_CFG_A__B___C_D": "2",
        "KBROKER_CFG_": "3",
        "KBROKER_PORT": "4",
        "KAFKA_LOG_RETENTION_MS": "5",
    }
    assert read_environment(environ) == {"log.retention.ms": "1", "a_b-c.d": "2"}
    assert read_environment(environ, "KAFKA_") == {"log.retention.ms": "5"}


def test_options_are_parsed_as_key_value_pairs() -> None:
    assert read_options(["a=1", "b = x=y", "a=2"]) == {"a": "2", "b": "x=y"}
    for bad in ("a", "=1", ""):
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            read_options([bad])


def test_file_format_follows_suffix_and_errors_name_file(tmp_path: Path) -> None:
    toml, properties = tmp_path / "k.toml", tmp_path / "server.properties"
    toml.write_text("num.partitions = 3")
    properties.write_bytes("super.users=Jürgen".encode("latin-1"))
    assert read_file(toml) == {"num.partitions": "3"}
    assert read_file(properties) == {"super.users": "Jürgen"}
    toml.write_text("= 3")
    with pytest.raises(ConfigError, match=r"k\.toml: "):
        read_file(toml)
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot read it: No such file"):
        read_file(tmp_path / "gone.toml")
