"""Command-line options of `kbroker serve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kbroker.cluster.topics import NewTopic

from .flags import SettingFlags


@dataclass(slots=True)
class ServeOptions(SettingFlags):
    """Command-line options of `kbroker serve`; see its help."""

    memory: bool = False
    tls_dev: bool = False
    cluster: str | None = None
    processes: int | None = None
    nodes: int | None = None
    racks: Sequence[str] = ()
    topics: list[NewTopic] = field(default_factory=list)
    seeds: Sequence[str] = ()
    port_file: str | None = None
    ready_fd: int | None = None
    as_json: bool = False
    log_levels: tuple[str, ...] = ()
    log_format: str = "text"
    log_compat: str | None = None
    audit_file: str | None = None
    grace_seconds: float = 5
    exit_with_parent: bool = False
    idle_seconds: float | None = None
    as_version: str | None = None
    control_port: int | None = None
    control_token_file: str | None = None
    disk: bool = False
    cluster_id: str | None = None
