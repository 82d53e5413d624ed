"""The `kbroker version` command: versions of kbroker, of Python and of a cluster."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from kbroker import __version__

from .output import Column, format_options, paragraphs, show, table
from .target import Given, cluster_options, resolve, run

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient

# A requirement of an extra: name of the package, and name of the extra.
_REQUIREMENT = re.compile(r"([\w.-]+).*;.*\bextra == ['\"]([\w-]+)['\"]")
# Extras for developers of kbroker.
_HIDDEN_EXTRAS = ("dev",)


def is_compiled() -> bool:
    """Return True if kbroker runs compiled modules."""
    return find_spec("kbroker.compiled__mypyc") is not None


@click.command("version")
@click.option("--cluster", is_flag=True, help="Also show the versions that the cluster supports.")
@format_options
@cluster_options
def version_(given: Given, cluster: bool, output: str) -> None:
    """Show the versions of kbroker and Python, and the installed extras.

    With --cluster, show the newest release of Apache Kafka whose API versions each broker serves.
    """
    extras = _extras()
    value: dict[str, object] = {
        "version": __version__,
        "compiled": is_compiled(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "extras": [name for name, is_installed in extras.items() if is_installed],
        "missing_extras": [name for name, is_installed in extras.items() if not is_installed],
    }
    brokers = run(resolve(given), _brokers) if cluster else []
    if cluster:
        value["brokers"] = brokers
    columns = [Column("broker"), Column("address"), Column("api_versions"), Column("features")]

    def text(wide: bool) -> list[str]:
        parts = [_lines(value)]
        return paragraphs([*parts, table(columns, brokers, wide=wide)] if cluster else parts)

    show(output, value, text)


def _lines(value: dict[str, object]) -> list[str]:
    shown = {
        "kbroker": f"{value['version']}{', compiled' if value['compiled'] else ''}",
        "Python": f"{value['python']}, {value['platform']}",
        "Extras": _names(value["extras"]),
        "Missing": _names(value["missing_extras"]),
    }
    return [f"{name:<9}{each}" for name, each in shown.items()]


def _names(listed: object) -> str:
    return ", ".join(listed) if isinstance(listed, list) and listed else "-"


def _extras() -> dict[str, bool]:
    """Return the extras of kbroker, each with True if all of its packages are installed."""
    try:
        requirements = distribution("kbroker").requires or []
    except PackageNotFoundError:
        return {}
    found: dict[str, bool] = {}
    for each in map(_REQUIREMENT.fullmatch, requirements):
        if each is not None and each[2] not in _HIDDEN_EXTRAS:
            found[each[2]] = found.get(each[2], True) and _is_installed(each[1])
    return dict(sorted(found.items()))


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


async def _brokers(cluster: ClusterClient) -> list[dict[str, object]]:
    """Return a row for each broker: its address, and what its ApiVersions response says."""
    from kbroker.testing.releases import newest_release

    rows: list[dict[str, object]] = []
    for broker in sorted((await cluster.metadata([])).brokers, key=lambda each: each.node_id):
        connection = await cluster.node(broker.node_id)
        newest = {key: highest for key, (_, highest) in connection.versions.items()}
        rows.append(
            {
                "broker": broker.node_id,
                "address": f"{broker.host}:{broker.port}",
                "api_versions": newest_release(newest),
                "features": connection.features,
            }
        )
    return rows
