"""Reading segment files without a broker: the option `path`."""

from __future__ import annotations

from typing import NoReturn

from .options import OptionError, SourceOptions


def FileReader(options: SourceOptions) -> NoReturn:
    """Batch reading. Raises OptionError: it is not there yet."""
    raise OptionError(f"path={options.path}: reading segment files is not there yet")


def file_stream_reader(options: SourceOptions) -> NoReturn:
    """Streaming. Raises OptionError: it is not there yet."""
    raise OptionError(f"path={options.path}: segment files cannot be read as a stream")
