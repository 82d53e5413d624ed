"""Where kbroker answers otherwise than Apache Kafka 4.3, and why: the table that docs show."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.config import BROKER_PROPERTIES
from kbroker.protocol.api_keys import ApiKey

from .compare import (
    Rule,
    any_order,
    both_some,
    close,
    exactly,
    higher,
    lower,
    made_up_id,
    named_once,
    not_more,
    own_settings,
    paired,
    positive,
    recent,
    refused_alone,
    same_batches,
    some_missing,
    texts,
    unlike,
)

OWN = "Each broker makes its own."
ONCE = "What a request names several times is worked on once."
UNORDERED = (
    "Kafka's order is that of a hash table; kbroker keeps that of the request or of creation."
)
LATER = "kbroker advertises what works, and no more."
ELR = (
    "Kafka keeps this setting for the whole cluster where eligible leader replicas are on (KIP-966); "
    "kbroker does not have them."
)
LEADERS = (
    "Where a leader goes, and where a group becomes a classic one, Kafka's next leader is the first "
    "of a hash table; kbroker's is the member that came first."
)
QUORUM = "kbroker keeps metadata in one journal; offsets count its transactions."
FLOOR = "kbroker goes on serving the versions that Kafka 4.0 dropped (KIP-896), for older clients."

STARTED_WITH = (
    "advertised.listeners",
    "broker.id",
    "controller.listener.names",
    "controller.quorum.voters",
    "group.initial.rebalance.delay.ms",
    "listeners",
    "log.dirs",
    "node.id",
    "offsets.topic.replication.factor",
    "process.roles",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
)
"""Settings that the test has to give Apache Kafka, or gives each broker for itself."""

OTHER_DEFAULTS = [
    name
    for name, each in sorted(BROKER_PROPERTIES.items())
    if each.kafka_default not in (None, each.default) and name not in STARTED_WITH
]
"""Settings whose defaults are kbroker's own."""

SETTINGS = (
    *(
        Rule(
            "DescribeConfigs",
            "results.configs*",
            "nothing, for what each broker was started with: "
            + ", ".join(f"`{each}`" for each in STARTED_WITH),
            "Kafka cannot start without them.",
            unlike,
            call="configs: every *",
            row=f"*<{name}>*",
        )
        for name in STARTED_WITH
    ),
    *(
        Rule(
            "DescribeConfigs",
            "results.configs*value",
            f"`{name}`: kbroker {BROKER_PROPERTIES[name].default}, "
            f"Kafka {BROKER_PROPERTIES[name].kafka_default}",
            "Safer or handier defaults (configuration.md).",
            exactly(BROKER_PROPERTIES[name].default, BROKER_PROPERTIES[name].kafka_default),
            row=f"*<{name}>*",
        )
        for name in OTHER_DEFAULTS
    ),
    Rule(
        "DescribeConfigs",
        "results.configs.read_only",
        "kbroker: read-only; Kafka: not",
        "kbroker's listeners are fixed while it runs.",
        exactly(True, False),
        row="*<listener*",
    ),
    Rule(
        "DescribeConfigs",
        "results.configs.order",
        "kbroker has all of Kafka's but those that mean nothing to it",
        "configuration.md names them; kbroker has some of its own.",
        own_settings,
        call="configs: every setting of the broker",
    ),
    Rule(
        "DescribeConfigs",
        "results.configs.order",
        "both have some",
        "Loggers have the names of each program's modules.",
        both_some,
        call="configs: loggers",
    ),
)

DIFFERENCES = (
    *SETTINGS,
    Rule(
        "*",
        "*error_message",
        "both have a text",
        "Texts are kbroker's own: they name the next action. Where kbroker has nothing to say it is "
        "null, also where Kafka writes an empty text or `NONE`.",
        texts,
    ),
    Rule("*", "*topic_id", "one of each for a topic", OWN, paired),
    Rule("*", "cluster_id", "one of each", OWN, paired),
    Rule("*", "*port", "one of each", OWN, paired),
    Rule("*", "*member_id", "one of each for a member", OWN, paired),
    Rule("JoinGroup", "leader", "one of each for a member", OWN, paired),
    Rule("Metadata", "topics.order", "the same rows", UNORDERED, any_order),
    Rule("ElectLeaders", "*.order", "the same rows", UNORDERED, any_order),
    Rule("ListGroups", "groups.order", "the same rows", UNORDERED, any_order),
    Rule("DeleteGroups", "results.order", "the same rows", UNORDERED, any_order),
    Rule("DeleteRecords", "*.order", "the same rows", UNORDERED, any_order),
    Rule("DeleteTopics", "responses.order", "the same rows", UNORDERED, any_order),
    Rule(
        "CreateTopics",
        "topics.configs.config_source",
        "kbroker: default; Kafka: default of the cluster",
        ELR,
        exactly(5, 3),
        row="*<min.insync.replicas>*",
    ),
    Rule(
        "CreateTopics",
        "topics.topic_id",
        "Kafka has one",
        "With `validate_only` Kafka answers an id that no topic will have; kbroker answers none.",
        made_up_id,
        call="create: [oi]n*",
    ),
    Rule("ListConfigResources", "*.order", "the same rows", UNORDERED, any_order),
    Rule("*Configs", "*.order", "the same rows", UNORDERED, any_order),
    Rule(
        "DescribeConfigs",
        "results.configs.documentation",
        "both have a text",
        "Texts are kbroker's own, about what kbroker does.",
        texts,
    ),
    Rule(
        "DescribeConfigs",
        "results.configs*source",
        "kbroker: default; Kafka: default of the cluster",
        ELR,
        exactly(5, 3),
        row="*<min.insync.replicas>*",
    ),
    Rule(
        "DescribeConfigs",
        "results.configs.synonyms.order",
        "kbroker has some of Kafka's",
        ELR,
        some_missing,
        row="*<min.insync.replicas>*",
    ),
    Rule(
        "DescribeConfigs",
        "results.configs.order",
        "kbroker: none; Kafka: `min.insync.replicas`",
        ELR,
        some_missing,
        row="results<''>*",
    ),
    Rule(
        "DescribeConfigs",
        "results.configs*source",
        "kbroker: default; Kafka: configuration file",
        "Kafka demands `node.id`, kbroker has a default.",
        exactly(5, 4),
        row="*<node.id>*",
    ),
    Rule(
        "IncrementalAlterConfigs",
        "responses.error_code",
        "kbroker: 42; Kafka: -1",
        "An operation that does not exist is the request's fault, not the server's.",
        exactly(42, -1),
        call="increment: unknown operation",
    ),
    Rule("DescribeLogDirs", "*.order", "the same rows", UNORDERED, any_order),
    Rule("AlterReplicaLogDirs", "*.order", "the same rows", UNORDERED, any_order),
    Rule(
        "DescribeLogDirs",
        "results.usable_bytes",
        "to a tenth",
        "Others use the disk.",
        close,
        may_be_equal=True,
    ),
    Rule(
        "DescribeLogDirs",
        "results.total_bytes",
        "not more than Kafka's",
        "Room that the file system keeps for others is neither used nor free, as in `df`.",
        not_more,
        may_be_equal=True,
    ),
    Rule("*UserScramCredentials", "*.order", "the same rows", UNORDERED, any_order),
    Rule(
        "AlterUserScramCredentials",
        "results.error_code",
        "kbroker: 93; Kafka: 0",
        "No login can send an empty salt, so nobody could log in.",
        exactly(93, 0),
        call="scram: no salt",
    ),
    Rule(
        "AlterUserScramCredentials",
        "results.error_code",
        "kbroker: 93; Kafka: 0",
        "Names are kept up to 512 bytes, salts and hashes up to 256: they stay in memory.",
        exactly(93, 0),
        call="scram: a long name",
    ),
    Rule(
        "AlterUserScramCredentials",
        "results.error_code",
        "kbroker: 93; Kafka: -1",
        "A salted password that is empty is the request's fault, not the server's.",
        exactly(93, -1),
        call="scram: no salted password",
    ),
    Rule("*ClientQuotas", "*.order", "the same rows", UNORDERED, any_order),
    Rule("*Acls", "*.order", "the same rows", UNORDERED, any_order),
    Rule(
        "DescribeConfigs",
        "results.configs*",
        "nothing, for `super.users`",
        "Kafka hides it, as all settings that only its authorizer knows; kbroker shows it.",
        unlike,
        call="configs: every *",
        row="*<super.users>*",
    ),
    Rule(
        "CreateAcls",
        "results.error_code",
        "kbroker: 42, and 0 for the other ACLs; Kafka: -1 for all",
        "ANY and MATCH are for filters; Kafka fails with UNKNOWN_SERVER_ERROR.",
        refused_alone,
        call="acls: * of filters",
    ),
    Rule(
        "*Acls",
        "answer",
        "kbroker: 42; Kafka closes the connection",
        "What nobody knows is an error of the request like others.",
        exactly("answered", "closed"),
        call="acls: * of nobody",
    ),
    Rule("DescribeQuorum", "*high_watermark", "both above 0", QUORUM, positive),
    Rule("DescribeQuorum", "*log_end_offset", "both above 0", QUORUM, positive),
    Rule("DescribeQuorum", "*_timestamp", "both just now", OWN, recent),
    Rule(
        "DescribeQuorum",
        "nodes.listeners.order",
        "kbroker: PLAINTEXT; Kafka: CONTROLLER",
        "kbroker has no listener for controllers; it names the one that was asked.",
        exactly(["PLAINTEXT"], ["CONTROLLER"]),
    ),
    Rule("*", "*producer_id", "one of each for a producer without a transactional id", OWN, paired),
    Rule(
        "Fetch",
        "*.records",
        "the same batches, but for producer ids and times of markers",
        OWN,
        same_batches,
    ),
    Rule(
        "Produce",
        "*.log_start_offset",
        "kbroker: -1; Kafka: the real one",
        "The batch was refused, and nothing about the log follows from that.",
        exactly(-1, 0),
    ),
    Rule("DescribeTransactions", "*_start_time_ms", "both just now", OWN, recent),
    Rule("DescribeProducers", "*.last_timestamp", "both just now", OWN, recent),
    Rule("AddPartitionsToTxn", "*.order", "the same rows", UNORDERED, any_order),
    Rule("OffsetFetch", "*.order", "the same rows", UNORDERED, any_order),
    Rule("DescribeProducers", "*.order", "the same rows", UNORDERED, any_order),
    Rule("DescribeTransactions", "*.partitions", "the same rows", UNORDERED, any_order),
    Rule("ListTransactions", "*.order", "the same rows", UNORDERED, any_order),
    Rule("ElectLeaders", "*.order", "kbroker has one row, Kafka several", ONCE, named_once),
    Rule("UpdateFeatures", "results.order", "kbroker has one row, Kafka several", ONCE, named_once),
    Rule("DescribeGroups", "groups.order", "kbroker has one row, Kafka several", ONCE, named_once),
    Rule("AddPartitionsToTxn", "*.order", "kbroker has one row, Kafka several", ONCE, named_once),
    Rule(
        "DescribeTransactions",
        "transaction_states.order",
        "kbroker has one row, Kafka several",
        ONCE,
        named_once,
    ),
    Rule("ApiVersions", "api_keys.min_version", "kbroker's is lower", FLOOR, lower),
    Rule("ApiVersions", "*_features.order", "kbroker has some of Kafka's", LATER, some_missing),
    Rule(
        "ApiVersions",
        "supported_features.min_version",
        "kbroker's is higher",
        "kbroker's metadata has one format, so one level of `metadata.version`: that of Kafka 4.3.",
        higher,
    ),
    Rule("ApiVersions", "finalized_features_epoch", "both above 0", QUORUM, positive),
)

ACCESS_DIFFERENCES = (
    Rule(
        "DescribeUserScramCredentials",
        "results.order",
        "kbroker: no row; Kafka: one without a name for each user",
        "The request is denied as a whole, which its own error says.",
        exactly([], ["''"]),
        call="access: *",
    ),
    Rule(
        "*",
        "*.order",
        "the same rows, where some are denied",
        UNORDERED,
        any_order,
        call="access: *",
    ),
)
"""What differs only for users whom ACLs allow some things."""

ONE_LEADER = "One node leads what it has for good, and nobody is behind it."
TOKENS = "Nobody logs in there: test_delegation_tokens.py."

NOT_COMPARED: dict[ApiKey, dict[str, str]] = {
    ApiKey.METADATA: {
        "topics.partitions.leader_epoch": ONE_LEADER,
        "topics.partitions.offline_replicas": ONE_LEADER,
    },
    ApiKey.API_VERSIONS: {"zk_migration_ready": "There is no ZooKeeper."},
    ApiKey.CREATE_TOPICS: {
        "topics.configs.read_only": "Every setting of a topic can be changed.",
        "topics.configs.is_sensitive": "No setting of a topic is a secret.",
    },
    ApiKey.DESCRIBE_LOG_DIRS: {
        "results.topics.partitions.offset_lag": "A partition that moves is there when it is asked for.",
        "results.topics.partitions.is_future_key": "The same.",
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {
        "topics.*": "On one node a reassignment is done when it is answered, in Kafka as well.",
    },
    ApiKey.DESCRIBE_CLUSTER: {"brokers.is_fenced": "Who is fenced does not answer."},
    ApiKey.DESCRIBE_QUORUM: {
        "topics.partitions.observers.*": "One node is a voter, and there is nobody to observe.",
        "topics.partitions.current_voters.replica_directory_id": "Voters in a configuration have none.",
        "nodes.listeners.*": "Only Kafka has a listener for controllers.",
    },
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {
        "topics.partitions.leader_epoch": ONE_LEADER,
        "topics.partitions.offline_replicas": ONE_LEADER,
        "topics.partitions.eligible_leader_replicas": ONE_LEADER,
        "topics.partitions.last_known_elr": ONE_LEADER,
    },
    ApiKey.SASL_HANDSHAKE: {"mechanisms": TOKENS},
    ApiKey.SASL_AUTHENTICATE: {"*": TOKENS},
    ApiKey.CREATE_DELEGATION_TOKEN: {"*": TOKENS},
    ApiKey.RENEW_DELEGATION_TOKEN: {"*": TOKENS},
    ApiKey.EXPIRE_DELEGATION_TOKEN: {"*": TOKENS},
    ApiKey.DESCRIBE_DELEGATION_TOKEN: {"tokens.*": TOKENS},
}
"""Fields that no call can make say something on one node, and why."""

NOT_ADMIN = {
    ApiKey.PRODUCE: "test_produce.py",
    ApiKey.FETCH: "test_codecs.py, test_positions.py",
    ApiKey.LIST_OFFSETS: "test_positions.py",
    ApiKey.OFFSET_COMMIT: "test_positions.py",
    ApiKey.OFFSET_FETCH: "test_positions.py",
    ApiKey.FIND_COORDINATOR: "test_groups.py",
    ApiKey.JOIN_GROUP: "test_groups.py",
    ApiKey.SYNC_GROUP: "test_groups.py",
    ApiKey.HEARTBEAT: "test_groups.py",
    ApiKey.LEAVE_GROUP: "test_groups.py",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "test_positions.py",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "test_consumer_groups.py",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "test_consumer_groups.py",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "test_streams_groups.py",
    ApiKey.STREAMS_GROUP_DESCRIBE: "test_streams_groups.py",
    ApiKey.SHARE_GROUP_HEARTBEAT: "test_share_groups.py",
    ApiKey.SHARE_GROUP_DESCRIBE: "test_share_groups.py",
    ApiKey.SHARE_FETCH: "test_share_fetch.py",
    ApiKey.SHARE_ACKNOWLEDGE: "test_share_fetch.py",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "test_share_groups.py",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "test_share_groups.py",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "test_share_groups.py",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "test_telemetry.py",
    ApiKey.PUSH_TELEMETRY: "test_telemetry.py",
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: "test_share_state.py",
    ApiKey.READ_SHARE_GROUP_STATE: "test_share_state.py",
    ApiKey.WRITE_SHARE_GROUP_STATE: "test_share_state.py",
    ApiKey.DELETE_SHARE_GROUP_STATE: "test_share_state.py",
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: "test_share_state.py",
}
"""APIs of producers and consumers, and where else they are held against Kafka.

But telemetry is not: Kafka serves it only with a plugin, so clients alone show what kbroker does.
"""


GROUP_DIFFERENCES = (
    Rule(
        "*",
        "*error_message",
        "both have a text",
        "Texts are kbroker's own: they name the next action.",
        texts,
        may_be_equal=True,
    ),
    Rule("JoinGroup", "leader", "another member may lead", LEADERS, unlike, may_be_equal=True),
    Rule(
        "JoinGroup",
        "members*",
        "another member may lead",
        LEADERS,
        unlike,
        call="* with another leader",
        may_be_equal=True,
    ),
    Rule(
        "JoinGroup",
        "error_code",
        "kbroker: 23; Kafka: -1",
        "A member of a consumer group says nothing of itself: kbroker refuses what Kafka trips over.",
        exactly(23, -1),
        may_be_equal=True,
    ),
)
"""In random histories of groups."""


def to_markdown(rules: Iterable[Rule] = (*DIFFERENCES, *ACCESS_DIFFERENCES)) -> str:
    """A table of docs/reference/kafka-differences.md."""
    # Rows of one API, field and reason may be several rules.
    rows = ["| API | field | what is still equal | why |", "|---|---|---|---|"]
    seen = set()
    for rule in rules:
        api = "all" if rule.api == "*" else rule.api
        row = f"| {api} | `{rule.place}` | {rule.how} | {rule.why} |"
        if row not in seen:
            rows.append(row)
            seen.add(row)
    return "\n".join(rows) + "\n"
