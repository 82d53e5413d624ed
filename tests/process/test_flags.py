"""Tests of the precedence of flags, environment variables and the configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.client.endpoint import Endpoint
from kbroker.config import ConfigError
from kbroker.process.flags import SettingFlags, load_settings
from kbroker.process.listeners import configured_listeners


def test_setting_sources_have_precedence(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    names = ("log.retention.ms", "num.partitions", "log.segment.bytes", "message.max.bytes")
    file.write_text("".join(f"{name}=4000000\n" for name in names))
    environ = {"KAFKA_" + name.replace(".", "_").upper(): "3000000" for name in names[:3]}
    environ |= {"KBROKER_CFG_" + name.replace(".", "_").upper(): "2000000" for name in names[:2]}
    flags = SettingFlags(config_file=str(file), overrides={names[0]: "1"}, env_config=True)
    config = load_settings(flags, environ)
    assert [config[name] for name in names] == [1, 2_000_000, 3_000_000, 4_000_000]
    origins = [config.origin(name) for name in names]
    assert origins == ["option", "environment", "KAFKA_* environment", str(file)]


def test_kafka_variables_are_ignored_by_default() -> None:
    config = load_settings(
        SettingFlags(), {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_CREATE_TOPICS": ":"}
    )
    assert (config.num_partitions, config.notices) == (1, ())


@pytest.mark.parametrize(
    ("flags", "listeners"),
    [
        (SettingFlags(), "A://h:1,B://:2"),
        (SettingFlags(port=0), "A://h:0,B://:2"),
        (SettingFlags(host="::1"), "A://[::1]:1,B://:2"),
        (SettingFlags(host="x", port=5), "A://x:5,B://:2"),
    ],
)
def test_host_and_port_flags_override_first_listener(flags: SettingFlags, listeners: str) -> None:
    flags.overrides = {"listeners": "A://h:1,B://:2"}
    assert ",".join(load_settings(flags, {}).all_listeners) == listeners


def test_advertise_flag_changes_only_first_listener() -> None:
    settings = {"listeners": "A://h:1,B://:2", "advertised.listeners": "A://old:1,B://b:2"}
    config = load_settings(SettingFlags(advertise="[::1]:9", overrides=settings), {})
    assert config.all_advertised_listeners == ("A://[::1]:9", "B://b:2")
    with pytest.raises(ConfigError, match="nonsense"):
        load_settings(SettingFlags(advertise="nonsense"), {})


def test_host_port_flag_adds_listener_for_container_host() -> None:
    settings = {
        "listeners": "IN://:9092",
        "advertised.listeners": "IN://kafka:9092",
        "listener.security.protocol.map": "IN:PLAINTEXT",
    }
    config = load_settings(SettingFlags(host_port=29092, overrides=settings), {})
    inside, outside = configured_listeners(config)
    assert (inside.name, inside.port, inside.advertised) == ("IN", 9092, Endpoint("kafka", 9092))
    assert (outside.name, outside.host) == ("HOST", inside.host)
    assert (outside.port, outside.advertised) == (29092, Endpoint("localhost", 29092))
    assert config.origin("listeners") == "--host-port"


def test_host_port_flag_keeps_first_advertised_address() -> None:
    """Without an advertised address, clients get the address that they connected to."""
    first, host = configured_listeners(load_settings(SettingFlags(host_port=29092), {}))
    assert (first.port, first.advertised, host.advertised) == (
        9092,
        None,
        Endpoint("localhost", 29092),
    )


def test_host_port_flag_rejects_existing_listener_name() -> None:
    settings = {"listeners": "HOST://:1", "listener.security.protocol.map": "HOST:PLAINTEXT"}
    with pytest.raises(ConfigError, match="listeners already contains HOST; omit --host-port"):
        load_settings(SettingFlags(host_port=2, overrides=settings), {})


def test_data_dir_flag_sets_log_dirs() -> None:
    config = load_settings(SettingFlags(data_dir="/x"), {})
    assert (config.log_dirs, config.origin("log.dirs")) == (("/x",), "--data-dir")


@pytest.mark.parametrize("name", ["log.dir", "log.dirs"])
def test_data_dir_flag_conflicts_with_log_dirs(name: str) -> None:
    with pytest.raises(ConfigError, match="omit one"):
        load_settings(SettingFlags(data_dir="/x", overrides={name: "/y"}), {})
