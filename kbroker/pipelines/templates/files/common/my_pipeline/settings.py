"""Settings, from four places: defaults, a TOML file, the environment, flags. The last one wins."""

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
    """A field of a settings class; a flag and a variable of its name set it too."""
    made: T = field(default=default, metadata={"help": help})
    return made


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every pipeline has to know."""

    bootstrap: str = setting("localhost:9092", "the Kafka to read from and to write to")
    format: str = setting("kafka", "kafka: Spark's connector; kbroker: the source without a jar")
    master: str = setting("local[2]", "Spark's master; submitted: as spark-submit says")
    kafka: Mapping[str, str] = field(default_factory=dict)
    """More properties for Kafka's clients, such as security.protocol; only in the file."""

    @classmethod
    def load(cls, arguments: Sequence[str] | None = None) -> Self:
        """Read the settings; those of a command line come last. A wrong one ends the program."""
        defaults = {each.name: each.default for each in fields(cls) if "help" in each.metadata}
        parser = ArgumentParser(prog="python -m my_pipeline", argument_default=SUPPRESS)
        parser.add_argument(
            "--conf", type=Path, default=FILE, help="the file (default: %(default)s)"
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
    """What the file says. Raises ValueError for a name or a type that is wrong."""
    if path == FILE and not path.exists():
        return {}
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    kafka = {name: str(value) for name, value in found.pop("kafka", {}).items()}
    for name, value in found.items():
        if name not in defaults:
            raise ValueError(
                f"{path}: no setting is called {name!r}; there are {', '.join(defaults)}"
            )
        if type(value) is not type(defaults[name]):
            raise ValueError(f"{path}: {name} is like {defaults[name]!r}, not {value!r}")
    return found | {"kafka": kafka}


def _environment(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What the environment says. Raises ValueError for what is no number and should be one."""
    names = {name: PREFIX + name.upper() for name in defaults}
    return {
        name: type(defaults[name])(os.environ[variable])
        for name, variable in names.items()
        if variable in os.environ
    }
