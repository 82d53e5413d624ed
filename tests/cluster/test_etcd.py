"""Parsing of the etcd address of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli import main
from kbroker.cluster.etcd import EtcdAddress
from kbroker.cluster.etcd_gateway import Login
from kbroker.config import ConfigError


def test_address_is_parsed() -> None:
    address = EtcdAddress.parse("etcd://one,two:1234,[::1]:5/shop")
    assert address.endpoints == ("http://one:2379", "http://two:1234", "http://[::1]:5")
    assert address.prefix == "/kb/shop/"
    assert str(address) == "etcd://one:2379,two:1234,[::1]:5/shop"
    assert address.trusted() is None


def test_credentials_are_parsed_and_hidden(tmp_path: Path) -> None:
    address = EtcdAddress.parse("etcd://me:p%40ss:word@one/shop")
    assert address.login == Login("me", "p@ss:word")
    assert "me" not in str(address)
    file = tmp_path / "password"
    file.write_text("secret\n")
    address = EtcdAddress.parse(f"etcd://me@one/shop?password-file={file}")
    assert address.login == Login("me", "secret")


def test_etcds_scheme_selects_tls() -> None:
    address = EtcdAddress.parse("etcds://one/shop")
    assert address.endpoints == ("https://one:2379",)
    assert str(address) == "etcds://one:2379/shop"
    assert address.trusted() is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("etcd://one:2379", "NAME"),
        ("etcd://one:2379/", "NAME"),
        ("etcd:///shop", "etcd://HOST:2379"),
        ("http://one:2379/shop", "etcd://HOST:2379"),
        ("etcd://one:x/shop", "one:x"),
        ("etcd://one,,two/shop", "not HOST:PORT"),
        ("etcd://one/shop?cat=x", "cat"),
        ("etcd://one/shop?ca=x", "etcds://"),
        ("etcds://one/shop?key=x", "cert"),
        ("etcd://me@one/shop", "password"),
        ("etcd://me:a@one/shop?password-file=x", "either a password"),
        ("etcd://one/shop?password-file=x", "USER"),
        ("etcd://me@one/shop?password-file=/no/such/file", "/no/such/file"),
    ],
)
def test_invalid_address_is_rejected(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        EtcdAddress.parse(text)
    assert expected in str(raised.value)


def test_error_names_unreadable_tls_file() -> None:
    with pytest.raises(ConfigError) as raised:
        EtcdAddress.parse("etcds://one/shop?ca=/no/such/ca.pem").trusted()
    assert "/no/such/ca.pem" in str(raised.value)


@pytest.mark.parametrize(
    "arguments", [["--memory"], ["--nodes", "3"], ["--racks", "a,b"], ["--control-port", "0"]]
)
def test_cluster_option_excludes_single_process_options(arguments: list[str]) -> None:
    done = CliRunner().invoke(main, ["serve", "--cluster", "etcd://one/shop", *arguments])
    assert done.exit_code == 2
    assert f"--cluster and {arguments[0]} exclude each other" in done.output


def test_migrate_metadata_ignores_cluster_variable(tmp_path: Path) -> None:
    environment = {"KBROKER_CLUSTER": "etcd://one/shop"}
    arguments = ["cluster", "resize", "--nodes", "1", str(tmp_path)]
    done = CliRunner().invoke(main, arguments, env=environment)
    assert done.exit_code == 1
    assert "found no directories of nodes" in done.output
    done = CliRunner().invoke(main, ["cluster", "migrate-metadata", str(tmp_path)], env=environment)
    assert done.exit_code == 2
    assert "give either --to or --from" in done.output
