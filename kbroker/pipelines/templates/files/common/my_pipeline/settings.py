"""Settings from defaults, a TOML file, environment variables and flags; later sources win."""

from __future__ import annotations

import os
import tomllib
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeVar

FILE = Path("my_pipeline.toml")
PREFIX = "MY_PIPELINE_"

T = TypeVar("T", str, int)


def setting(default: T, help: str) -> T:
    """Define a setting, which a flag and an environment variable can also set."""
    made: T = field(default=default, metadata={"help": help})
    return made


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of every pipeline."""

    bootstrap: str = setting("localhost:9092", "addresses of the Kafka brokers")
    format: str = setting("kafka", "kafka: Spark's connector; kbroker: pure-Python source")
    master: str = setting("local[2]", "Spark's master URL; submitted: use that of spark-submit")
    # Additional properties of the Kafka clients, such as security.protocol; only in the file.
    kafka: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, arguments: Sequence[str] | None = None) -> Self:
        """Load the settings; exit with a message if one is invalid."""
        defaults = {each.name: each.default for each in fields(cls) if "help" in each.metadata}
        parser = ArgumentParser(prog="python -m my_pipeline", argument_default=SUPPRESS)
        parser.add_argument(
            "--conf", type=Path, default=FILE, help="configuration file (default: %(default)s)"
        )
        for each in fields(cls):
            if each.name in defaults:
                flag = "--" + each.name.replace("_", "-")
                kind = type(each.default)
                text = f"{each.metadata['help']} (default: {each.default!r})"
                parser.add_argument(flag, type=kind, metavar=kind.__name__.upper(), help=text)
        flags = vars(parser.parse_args(arguments))
        try:
            file = _file(flags.pop("conf"), defaults)
            return cls(**file | _environment(defaults) | flags)
        except (OSError, ValueError) as error:
            parser.error(str(error))


def _file(path: Path, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in the file. Raises ValueError for an unknown name or a wrong type."""
    if path == FILE and not path.exists():
        return {}
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    kafka = {name: str(value) for name, value in found.pop("kafka", {}).items()}
    for name, value in found.items():
        if name not in defaults:
            raise ValueError(f"{path}: unknown setting {name!r} (valid: {', '.join(defaults)})")
        if type(value) is not type(defaults[name]):
            raise ValueError(f"{path}: {name} must be like {defaults[name]!r}, not {value!r}")
    return found | {"kafka": kafka}


def _environment(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in the environment. Raises ValueError for an invalid number."""
    names = {name: PREFIX + name.upper() for name in defaults}
    return {
        name: type(defaults[name])(os.environ[variable])
        for name, variable in names.items()
        if variable in os.environ
    }
