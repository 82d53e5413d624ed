"""Declared differences between the responses of kbroker and Apache Kafka 4.4, with reasons."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.config import BROKER_PROPERTIES
from kbroker.protocol.api_keys import ApiKey

from .compare import (
    Rule,
    accepts_only_ours,
    any_values,
    both_have_message,
    both_nonempty,
    both_positive,
    both_recent,
    exactly,
    one_row_per_item,
    only_theirs_has_id,
    ours_at_most,
    ours_higher,
    ours_is_subset,
    ours_is_superset,
    ours_lower,
    paired_ids,
    rejects_single_row,
    same_batches,
    same_rows,
    within_tenth,
)

OWN = "Each broker generates its own value."
ONCE = "kbroker processes an item once even if a request contains it several times."
UNORDERED = "Kafka returns hash table order; kbroker returns request or creation order."
LATER = "kbroker advertises only features that it implements."
ELR = (
    "Kafka stores this setting for the whole cluster (KIP-966); kbroker has no eligible leader "
    "replicas."
)
LEADERS = "If a group needs a new leader, Kafka picks it by hash, kbroker by join order."
QUORUM = "kbroker's metadata log counts its transactions as offsets."
FLOOR = "kbroker still serves versions that Kafka 4.0 removed (KIP-896), for older clients."

PLUGIN = "kbroker stores topology descriptions; Kafka does so only with a plugin."
WARMUPS = "Kafka 4.4 assigns no warm-up tasks."

ONE_ROW = "kbroker returns one row, Kafka several"

# Settings without which Kafka cannot start, or which the test sets for each broker.
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

# Settings with defaults that differ from Kafka's.
OTHER_DEFAULTS = [
    name
    for name, each in sorted(BROKER_PROPERTIES.items())
    if each.kafka_default not in (None, each.default) and name not in STARTED_WITH
]

SETTINGS = (
    *(
        Rule(
            "DescribeConfigs",
            "results.configs*",
            "nothing, for these settings: " + ", ".join(f"`{each}`" for each in STARTED_WITH),
            "The test sets them, because Kafka cannot start without them.",
            any_values,
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
            "Safer or more convenient default (see Configuration).",
            exactly(BROKER_PROPERTIES[name].default, BROKER_PROPERTIES[name].kafka_default),
            row=f"*<{name}>*",
        )
        for name in OTHER_DEFAULTS
    ),
    Rule(
        "DescribeConfigs",
        "results.configs.read_only",
        "kbroker: read-only; Kafka: dynamic",
        "kbroker cannot change listeners at runtime.",
        exactly(True, False),
        row="*<listener*",
    ),
    Rule(
        "DescribeConfigs",
        "results.configs.order",
        "kbroker returns all of Kafka's settings and others",
        "kbroker also has settings of its own, which Configuration lists.",
        ours_is_superset,
        call="configs: every setting of the broker",
    ),
    Rule(
        "DescribeConfigs",
        "results.configs.order",
        "both return loggers",
        "Logger names are module names of each program.",
        both_nonempty,
        call="configs: loggers",
    ),
)

DIFFERENCES = (
    *SETTINGS,
    Rule(
        "*",
        "*error_message",
        "both have a message",
        "kbroker's messages name the next action; only Kafka returns empty messages or `NONE`.",
        both_have_message,
    ),
    Rule("*", "*topic_id", "one ID per topic", OWN, paired_ids),
    Rule("*", "cluster_id", "one ID", OWN, paired_ids),
    Rule("*", "*port", "one port", OWN, paired_ids),
    Rule("*", "*member_id", "one ID per member", OWN, paired_ids),
    Rule("JoinGroup", "leader", "one ID per member", OWN, paired_ids),
    Rule("Metadata", "topics.order", "the same rows", UNORDERED, same_rows),
    Rule("ElectLeaders", "*.order", "the same rows", UNORDERED, same_rows),
    Rule(
        "StreamsGroupHeartbeat",
        "topology_description_required",
        "kbroker: true; Kafka: false",
        PLUGIN,
        exactly(True, False),
    ),
    Rule(
        "StreamsGroupDescribe",
        "groups.topology_description_status",
        "kbroker: available; Kafka: not stored",
        PLUGIN,
        exactly(3, 1),
    ),
    Rule(
        "StreamsGroupDescribe",
        "groups.topology_description*",
        "kbroker: the description; Kafka: null",
        PLUGIN,
        any_values,
        call="describe streams: topology",
    ),
    Rule(
        "StreamsGroupTopologyDescriptionUpdate",
        "error_*",
        "kbroker: no error; Kafka: UNSUPPORTED_VERSION",
        PLUGIN,
        accepts_only_ours,
        call="streams topology: a member",
    ),
    Rule(
        "StreamsGroupTopologyDescriptionUpdate",
        "error_code",
        "kbroker: UNKNOWN_MEMBER_ID; Kafka: UNSUPPORTED_VERSION",
        PLUGIN,
        exactly(25, 35),
    ),
    Rule("StreamsGroup*", "*.order", "the same rows", UNORDERED, same_rows),
    Rule("ListGroups", "groups.order", "the same rows", UNORDERED, same_rows),
    Rule("DeleteGroups", "results.order", "the same rows", UNORDERED, same_rows),
    Rule("DeleteRecords", "*.order", "the same rows", UNORDERED, same_rows),
    Rule("DeleteTopics", "responses.order", "the same rows", UNORDERED, same_rows),
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
        "Kafka returns an ID",
        "With `validate_only`, Kafka returns an ID that no topic will have; kbroker returns none.",
        only_theirs_has_id,
        call="create: [oi]n*",
    ),
    Rule("ListConfigResources", "*.order", "the same rows", UNORDERED, same_rows),
    Rule("*Configs", "*.order", "the same rows", UNORDERED, same_rows),
    Rule(
        "DescribeConfigs",
        "results.configs.documentation",
        "both have a description",
        "kbroker's descriptions describe kbroker.",
        both_have_message,
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
        "kbroker returns a part of Kafka's rows",
        ELR,
        ours_is_subset,
        row="*<min.insync.replicas>*",
    ),
    Rule(
        "DescribeConfigs",
        "results.configs.order",
        "kbroker: none; Kafka: `min.insync.replicas`",
        ELR,
        ours_is_subset,
        row="results<''>*",
    ),
    Rule(
        "DescribeConfigs",
        "results.configs*source",
        "kbroker: default; Kafka: configuration file",
        "`node.id` is mandatory in Kafka; kbroker has a default.",
        exactly(5, 4),
        row="*<node.id>*",
    ),
    Rule(
        "IncrementalAlterConfigs",
        "responses.error_code",
        "kbroker: 42; Kafka: -1",
        "An unknown operation is an error of the request, not of the server.",
        exactly(42, -1),
        call="increment: unknown operation",
    ),
    Rule("DescribeLogDirs", "*.order", "the same rows", UNORDERED, same_rows),
    Rule("AlterReplicaLogDirs", "*.order", "the same rows", UNORDERED, same_rows),
    Rule(
        "DescribeLogDirs",
        "results.usable_bytes",
        "within 10 %",
        "Other processes use the disk.",
        within_tenth,
        may_be_equal=True,
    ),
    Rule(
        "DescribeLogDirs",
        "results.total_bytes",
        "at most Kafka's value",
        "kbroker subtracts the reserved blocks of the file system, as `df` does.",
        ours_at_most,
        may_be_equal=True,
    ),
    Rule("*UserScramCredentials", "*.order", "the same rows", UNORDERED, same_rows),
    Rule(
        "AlterUserScramCredentials",
        "results.error_code",
        "kbroker: 93; Kafka: 0",
        "No client could authenticate with an empty salt.",
        exactly(93, 0),
        call="scram: no salt",
    ),
    Rule(
        "AlterUserScramCredentials",
        "results.error_code",
        "kbroker: 93; Kafka: 0",
        "To save memory, kbroker limits names to 512 bytes, salts and hashes to 256.",
        exactly(93, 0),
        call="scram: a long name",
    ),
    Rule(
        "AlterUserScramCredentials",
        "results.error_code",
        "kbroker: 93; Kafka: -1",
        "An empty salted password is an error of the request, not of the server.",
        exactly(93, -1),
        call="scram: no salted password",
    ),
    Rule("*ClientQuotas", "*.order", "the same rows", UNORDERED, same_rows),
    Rule("*Acls", "*.order", "the same rows", UNORDERED, same_rows),
    Rule(
        "DescribeConfigs",
        "results.configs*",
        "nothing, for `super.users`",
        "Kafka hides settings of the authorizer; kbroker shows this one.",
        any_values,
        call="configs: every *",
        row="*<super.users>*",
    ),
    Rule(
        "CreateAcls",
        "results.error_code",
        "kbroker: 42, and 0 for the other ACLs; Kafka: -1 for all",
        "ANY and MATCH are valid in filters only; Kafka fails with UNKNOWN_SERVER_ERROR.",
        rejects_single_row,
        call="acls: ANY as *",
    ),
    Rule(
        "*Acls",
        "answer",
        "kbroker: 42; Kafka closes the connection",
        "kbroker reports an unknown enum value as an error of the request.",
        exactly("answered", "closed"),
        call="acls: * unknown operation",
    ),
    Rule("DescribeQuorum", "*high_watermark", "both above 0", QUORUM, both_positive),
    Rule("DescribeQuorum", "*log_end_offset", "both above 0", QUORUM, both_positive),
    Rule("DescribeQuorum", "*_timestamp", "both just now", OWN, both_recent),
    Rule(
        "DescribeQuorum",
        "nodes.listeners.order",
        "kbroker: PLAINTEXT; Kafka: CONTROLLER",
        "kbroker has no controller listener; it returns the listener of the request.",
        exactly(["PLAINTEXT"], ["CONTROLLER"]),
    ),
    Rule("*", "*producer_id", "one ID per producer without a transactional ID", OWN, paired_ids),
    Rule(
        "Fetch",
        "*.records",
        "the same batches, except producer IDs and timestamps of markers",
        OWN,
        same_batches,
    ),
    Rule(
        "Produce",
        "*.log_start_offset",
        "kbroker: -1; Kafka: the actual offset",
        "The batch was rejected before the log was read.",
        exactly(-1, 0),
    ),
    Rule("DescribeTransactions", "*_start_time_ms", "both just now", OWN, both_recent),
    Rule("DescribeProducers", "*.last_timestamp", "both just now", OWN, both_recent),
    Rule("AddPartitionsToTxn", "*.order", "the same rows", UNORDERED, same_rows),
    Rule("OffsetFetch", "*.order", "the same rows", UNORDERED, same_rows),
    Rule("DescribeProducers", "*.order", "the same rows", UNORDERED, same_rows),
    Rule("DescribeTransactions", "*.partitions", "the same rows", UNORDERED, same_rows),
    Rule("ListTransactions", "*.order", "the same rows", UNORDERED, same_rows),
    Rule("ElectLeaders", "*.order", ONE_ROW, ONCE, one_row_per_item),
    Rule("UpdateFeatures", "results.order", ONE_ROW, ONCE, one_row_per_item),
    Rule("DescribeGroups", "groups.order", ONE_ROW, ONCE, one_row_per_item),
    Rule("AddPartitionsToTxn", "*.order", ONE_ROW, ONCE, one_row_per_item),
    Rule(
        "DescribeTransactions",
        "transaction_states.order",
        ONE_ROW,
        ONCE,
        one_row_per_item,
    ),
    Rule("ApiVersions", "api_keys.min_version", "kbroker's is lower", FLOOR, ours_lower),
    Rule(
        "ApiVersions",
        "*_features.order",
        "kbroker returns a part of Kafka's rows",
        LATER,
        ours_is_subset,
    ),
    Rule(
        "ApiVersions",
        "supported_features.min_version",
        "kbroker's is higher",
        "kbroker's metadata format is that of Kafka 4.3 and later, so `metadata.version` starts at 30.",
        ours_higher,
    ),
    Rule("ApiVersions", "finalized_features_epoch", "both above 0", QUORUM, both_positive),
)

# Differences for users whose ACLs permit only some operations.
ACCESS_DIFFERENCES = (
    Rule(
        "StreamsGroupTopologyDescriptionUpdate",
        "error_code",
        "kbroker: GROUP_ID_NOT_FOUND; Kafka: UNSUPPORTED_VERSION",
        PLUGIN,
        exactly(69, 35),
        call="access: *",
    ),
    Rule(
        "DescribeUserScramCredentials",
        "results.order",
        "kbroker: no row; Kafka: one row without a name per user",
        "The top-level error denies the whole request.",
        exactly([], ["''"]),
        call="access: *",
    ),
    Rule(
        "*",
        "*.order",
        "the same rows, if some are denied",
        UNORDERED,
        same_rows,
        call="access: *",
    ),
)

ONE_LEADER = "A single node always leads its partitions and has no followers."
TOKENS = "The test does not authenticate; see test_delegation_tokens.py."

# Fields that have no meaningful value on one node, with the reason.
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
        "results.topics.partitions.offset_lag": "A move between directories is complete before the response is read.",
        "results.topics.partitions.is_future_key": "As for offset_lag.",
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {
        "topics.*": "On one node a reassignment is complete before its response, also in Kafka.",
    },
    ApiKey.DESCRIBE_CLUSTER: {"brokers.is_fenced": "A fenced broker does not respond."},
    ApiKey.DESCRIBE_QUORUM: {
        "topics.partitions.observers.*": "A single node is a voter, so there are no observers.",
        "topics.partitions.current_voters.replica_directory_id": "Voters of a static configuration have no directory ID.",
        "nodes.listeners.*": "Only Kafka has controller listeners.",
    },
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {
        "topics.partitions.leader_epoch": ONE_LEADER,
        "topics.partitions.offline_replicas": ONE_LEADER,
        "topics.partitions.eligible_leader_replicas": ONE_LEADER,
        "topics.partitions.last_known_elr": ONE_LEADER,
    },
    ApiKey.STREAMS_GROUP_HEARTBEAT: {
        "acceptable_recovery_lag_legacy": "Kafka 4.4 leaves it at 0.",
        "warmup_tasks.*": WARMUPS,
        "topology_description_required": PLUGIN,
    },
    ApiKey.STREAMS_GROUP_DESCRIBE: {
        "groups.members.*warmup_tasks.*": WARMUPS,
        "groups.members.is_classic": "Members of streams groups have one protocol.",
        "groups.topology_description.*": PLUGIN,
    },
    ApiKey.SASL_HANDSHAKE: {"mechanisms": TOKENS},
    ApiKey.SASL_AUTHENTICATE: {"*": TOKENS},
    ApiKey.CREATE_DELEGATION_TOKEN: {"*": TOKENS},
    ApiKey.RENEW_DELEGATION_TOKEN: {"*": TOKENS},
    ApiKey.EXPIRE_DELEGATION_TOKEN: {"*": TOKENS},
    ApiKey.DESCRIBE_DELEGATION_TOKEN: {"tokens.*": TOKENS},
}

# APIs of producers and consumers, and the tests that compare them with Kafka. Telemetry is tested with
# clients only, because Kafka serves it only with a plug-in.
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


# Messages in the responses of group APIs.
GROUP_MESSAGES = Rule(
    "*",
    "*error_message",
    "both have a message",
    "kbroker's messages name the next action.",
    both_have_message,
    may_be_equal=True,
)

# Differences in random histories of streams groups.
STREAMS_HISTORY_DIFFERENCES = (
    Rule(
        "StreamsGroupHeartbeat",
        "*.order",
        "the same rows",
        UNORDERED,
        same_rows,
        may_be_equal=True,
    ),
    GROUP_MESSAGES,
    Rule(
        "StreamsGroupHeartbeat",
        "topology_description_required",
        "kbroker: true; Kafka: false",
        PLUGIN,
        exactly(True, False),
        may_be_equal=True,
    ),
    Rule(
        "StreamsGroupDescribe",
        "groups.topology.subtopologies.state_changelog_topics.partitions",
        "kbroker: the partition count; Kafka: 0",
        "Kafka shows the partition count of an internal topic after the group's next change.",
        exactly(4, 0),
        may_be_equal=True,
    ),
)

# Differences in random group histories.
GROUP_DIFFERENCES = (
    GROUP_MESSAGES,
    Rule("JoinGroup", "leader", "another member may lead", LEADERS, any_values, may_be_equal=True),
    Rule(
        "JoinGroup",
        "members*",
        "another member may lead",
        LEADERS,
        any_values,
        call="* with another leader",
        may_be_equal=True,
    ),
    Rule(
        "JoinGroup",
        "error_code",
        "kbroker: 23; Kafka: -1",
        "For member metadata that cannot be parsed, Kafka fails and kbroker rejects the request.",
        exactly(23, -1),
        may_be_equal=True,
    ),
)


HISTORY_DIFFERENCES = (
    Rule("*", "*error_message", "both have a message", "", both_have_message, may_be_equal=True),
    Rule(
        "Produce",
        "*.log_start_offset",
        "kbroker: -1; Kafka: the actual offset",
        "The batch was rejected before the log was read.",
        any_values,
        may_be_equal=True,
    ),
)


def to_markdown(rules: Iterable[Rule] = (*DIFFERENCES, *ACCESS_DIFFERENCES)) -> str:
    """Return a table of docs/reference/kafka-differences.md."""
    # Several rules may produce the same row.
    rows = ["| API | field | what is still equal | reason |", "|---|---|---|---|"]
    seen = set()
    for rule in rules:
        api = "all" if rule.api == "*" else rule.api
        row = f"| {api} | `{rule.place}` | {rule.how} | {rule.why} |"
        if row not in seen:
            rows.append(row)
            seen.add(row)
    return "\n".join(rows) + "\n"
