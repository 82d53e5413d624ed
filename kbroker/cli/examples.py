"""Examples and documentation pages of commands, shown at the end of their help."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

_CLI: Final = "docs/reference/cli.md"
_CONTROL: Final = "docs/reference/control-protocol.md"
_HOW_TO: Final = "docs/how-to"


class Guide(NamedTuple):
    """Documentation page and examples of a command.

    Attributes:
        page: Path of the page in the repository, with the anchor of a heading.
        examples: Command lines without `kbroker`.
    """

    page: str
    examples: tuple[str, ...]


def _guides(page: str, examples: Mapping[str, tuple[str, ...]]) -> dict[str, Guide]:
    return {command: Guide(page, lines) for command, lines in examples.items()}


_BROKER = {
    "serve": Guide(
        "docs/reference/configuration.md",
        (
            "serve --memory --port 0",
            "serve --data-dir data --topic orders:3 -o log.retention.hours=24",
            "serve --nodes 3",
        ),
    ),
    "run": Guide(f"{_CLI}#a-broker-for-one-command", ("run --topic orders:3 -- pytest -q",)),
    "health": Guide(f"{_HOW_TO}/operate.md", ("health", "health -b localhost:9092 --wait 30s")),
    "demo": Guide("docs/tutorials/examples.md", ("demo --rows 10000",)),
}
_TOPICS = _guides(
    f"{_CLI}#topics",
    {
        "topic create": (
            "topic create orders -p 3 -c retention.ms=86400000",
            "topic create --file topics.toml",
        ),
        "topic list": ("topic list", "topic list 'order*' -o wide"),
        "topic describe": ("topic describe orders", "topic describe orders -o json > topics.json"),
        "topic delete": ("topic delete orders users",),
        "topic alter-config": (
            "topic alter-config orders --set retention.ms=60000",
            "topic alter-config orders --append cleanup.policy=compact",
        ),
        "topic add-partitions": (
            "topic add-partitions orders 2",
            "topic add-partitions orders --total 6 --dry-run",
        ),
        "topic move": (
            "topic move orders --to 2,3 --dry-run",
            "topic move 'shop.*' --to 2,3",
        ),
    },
)
_RECORDS = _guides(
    f"{_CLI}#writing-and-reading-records",
    {
        "topic produce": (
            'topic produce orders -k customer-1 "first order"',
            "topic produce orders -d : < lines.txt",
        ),
        "topic consume": (
            "topic consume orders --from-beginning -n 10",
            "topic consume orders -o @-1h:end -f '%p/%o %k=%v\\n'",
            "topic consume orders -g readers",
        ),
        "topic trim": ("topic trim orders --before @-7d --dry-run",),
    },
)
_GROUPS = _guides(
    f"{_CLI}#groups",
    {
        "group list": ("group list", "group list --state Empty"),
        "group describe": ("group describe readers", "group describe readers --topics"),
        "group alter-config": (
            "group alter-config readers --set consumer.session.timeout.ms=50s",
            "group alter-config readers --delete consumer.session.timeout.ms",
        ),
        "group seek": (
            "group seek readers --to start --topic orders --dry-run",
            "group seek readers --to @-1h",
        ),
        "group wait": ("group wait readers --state Stable --members 2 --timeout 30s",),
        "group offset-delete": ("group offset-delete readers --topic orders:0,1",),
        "group delete": ("group delete readers",),
    },
)
_REGISTRY = _guides(
    f"{_CLI}#schema-registry",
    {
        "registry list": ("registry list --registry http://localhost:8081",),
        "registry show": ("registry show orders-value --schema",),
        "registry register": ("registry register orders-value order.avsc",),
        "registry check": ("registry check orders-value order.avsc",),
        "registry compare": ("registry compare orders-value",),
        "registry level get": ("registry level get orders-value",),
        "registry level set": ("registry level set FULL orders-value",),
        "registry level unset": ("registry level unset orders-value",),
        "registry delete": ("registry delete orders-value:1",),
    },
)
_CLUSTER = {
    "cluster clients": Guide(
        f"{_HOW_TO}/topics-and-groups.md#find-the-clients-of-a-topic",
        ("cluster clients", "cluster clients --topic orders --since 1d"),
    ),
    **_guides(
        f"{_CLI}#clusters",
        {
            "cluster info": ("cluster info -o wide",),
            "cluster health": ("cluster health",),
            "cluster logdirs": ("cluster logdirs --topic orders",),
            "cluster drain": ("cluster drain 3 --dry-run", "cluster drain 3 --undo"),
            "cluster rebalance": ("cluster rebalance --dry-run",),
            "cluster unregister": ("cluster unregister 3",),
            "cluster quotas list": ("cluster quotas list --user alice",),
            "cluster quotas set": ("cluster quotas set --user alice producer_byte_rate=1MiB",),
            "cluster quotas remove": ("cluster quotas remove --user alice producer_byte_rate",),
        },
    ),
}
_NODES = _guides(
    f"{_CLI}#nodes-of-one-server",
    {
        "cluster node list": ("cluster node list",),
        "cluster node stop": ("cluster node stop 2",),
        "cluster node crash": ("cluster node crash 2",),
        "cluster node start": ("cluster node start 2",),
        "cluster node add": ("cluster node add --rack b",),
        "cluster node remove": ("cluster node remove 3",),
        "cluster node mark-dead": (
            "cluster node mark-dead --cluster etcd://localhost:2379/prod kbroker-data",
        ),
        "cluster link cut": ("cluster link cut 1 2",),
        "cluster link heal": ("cluster link heal",),
        "cluster resize": ("cluster resize --nodes 3 kbroker-data",),
        "cluster migrate-metadata": (
            "cluster migrate-metadata --to etcd://localhost:2379/prod kbroker-data",
        ),
    },
)
_TRANSACTIONS = _guides(
    f"{_CLI}#transactions",
    {
        "cluster txn list": ("cluster txn list --state Ongoing --longer-than 1m",),
        "cluster txn describe": ("cluster txn describe payments-1",),
        "cluster txn find-hanging": ("cluster txn find-hanging --topic orders",),
        "cluster txn abort": ("cluster txn abort payments-1",),
        "cluster txn abort-hanging": ("cluster txn abort-hanging orders 0 4711",),
    },
)
_SETTINGS = _guides(
    f"{_CLI}#broker-settings",
    {
        "config explain": ("config explain log.retention.ms",),
        "config log-level": (
            "config log-level kbroker.net=DEBUG",
            "config log-level --reset kbroker.net",
        ),
        "config set": ("config set log.retention.ms=86400000 --default",),
        "config show": ("config show --diff", "config show --node 1"),
        "config unset": ("config unset log.retention.ms --default",),
    },
)
_USERS = _guides(
    f"{_CLI}#users",
    {
        "security user list": ("security user list",),
        "security user add": ("security user add alice",),
        "security user remove": ("security user remove alice --mechanism SCRAM-SHA-256",),
    },
)
_TOKENS = _guides(
    f"{_HOW_TO}/authentication.md#delegation-tokens",
    {
        "security token list": ("security token list",),
        "security token create": ("security token create --max-lifetime 7d",),
        "security token renew": ("security token renew TOKEN --for 1d",),
        "security token expire": ("security token expire TOKEN",),
    },
)
_ACLS = _guides(
    f"{_HOW_TO}/acls-and-quotas.md",
    {
        "security acl add": ("security acl add --principal User:alice --consumer --topic orders",),
        "security acl list": ("security acl list --topic orders",),
        "security acl remove": ("security acl remove --principal User:alice --topic orders",),
        "security acl explain": (
            "security acl explain --principal User:alice --topic orders --operation read",
        ),
    },
)
_FILES = _guides(
    f"{_CLI}#files",
    {
        "log dump": ("log dump kbroker-data/orders-0 --records",),
        "log verify": ("log verify kbroker-data",),
        "log repair": ("log repair kbroker-data/orders-0",),
        "log import": ("log import kafka-data --data-dir kbroker-data --dry-run",),
    },
)
_PIPELINES = {
    "mcp": Guide("docs/how-to/agents.md", ("mcp", "mcp --allow produce_messages")),
    "audit": Guide(
        f"{_HOW_TO}/audit.md", ("audit orders", "audit orders --against copy --match-by key")
    ),
    "replay": Guide(f"{_HOW_TO}/replay.md", ("replay orders --to-topic copy --dry-run",)),
    "init pipeline": Guide(f"{_HOW_TO}/pipelines.md", ("init pipeline aggregate my_jobs",)),
    **_guides(
        f"{_HOW_TO}/spark.md",
        {
            "spark packages": ("spark packages", "spark packages --jars-dir jars"),
            "spark doctor": ("spark doctor job.log",),
        },
    ),
    **_guides(
        f"{_HOW_TO}/lake.md",
        {
            "lake archive": ("lake archive lake orders --once",),
            "lake check": ("lake check lake orders",),
            "lake merge": ("lake merge lake orders",),
            "lake set-aside": ("lake set-aside lake orders",),
        },
    ),
}
_TESTING = {
    **_guides(
        f"{_HOW_TO}/faults-in-tests.md",
        {
            "fault arm": ("fault arm Produce --error NOT_LEADER_OR_FOLLOWER --times 2",),
            "fault check": ("fault check",),
            "fault disarm": ("fault disarm 1",),
            "fault hits": ("fault hits 1 --wait 2",),
        },
    ),
    "clock advance": Guide(f"{_CONTROL}#clocks", ("clock advance 1h",)),
    "control": Guide(f"{_CONTROL}#commands", ("control crash_at point=produce.appended",)),
    **_guides(
        f"{_CLI}#explanations",
        {
            "explain group": ("explain group readers",),
            "explain share": ("explain share workers orders 0",),
            "explain partition": ("explain partition orders 0",),
            "explain transaction": ("explain transaction payments-1",),
            "explain client": ("explain client my-app",),
        },
    ),
}
_COMMAND_LINE = {
    "compat": Guide(
        f"{_HOW_TO}/docker.md#kafkas-scripts",
        ("compat kafka-topics --bootstrap-server localhost:9092 --list",),
    ),
    "completion": Guide(f"{_CLI}#completion", ("completion bash",)),
    "help": Guide(f"{_CLI}#help", ("help topic consume", "help offsets")),
    "version": Guide(f"{_CLI}#help", ("version", "version --cluster")),
    **_guides(
        f"{_CLI}#profiles",
        {
            "profile add": (
                "profile add prod -X brokers=kafka1,kafka2",
                "profile add prod --file client.properties",
            ),
            "profile edit": (
                "profile edit prod",
                "profile edit prod -X brokers=kafka3 --unset client.id",
            ),
            "profile delete": ("profile delete prod",),
            "profile list": ("profile list -o wide",),
            "profile show": ("profile show prod",),
            "profile use": ("profile use prod", "profile use -"),
        },
    ),
}

GUIDES: Final[Mapping[str, Guide]] = MappingProxyType(
    {
        **_BROKER,
        **_TOPICS,
        **_RECORDS,
        **_GROUPS,
        **_REGISTRY,
        **_CLUSTER,
        **_NODES,
        **_TRANSACTIONS,
        **_SETTINGS,
        **_USERS,
        **_TOKENS,
        **_ACLS,
        **_FILES,
        **_PIPELINES,
        **_TESTING,
        **_COMMAND_LINE,
    }
)
