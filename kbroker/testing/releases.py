"""API versions of each release of Apache Kafka, to simulate an older broker.

The table shows the releases in which the newest version of an API changed. `4.1:13` means version 13
since 4.1. `-` means that the API was removed. The versions are from the request schemas in the
branch of each release, without unstable versions. Up to 3.2 they are the versions of brokers with
ZooKeeper, and since 3.3 those of KRaft brokers. The table does not contain client telemetry (API
keys 71 and 72), because brokers announce these APIs only if they have a receiver.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from kbroker.handlers.context import Api
from kbroker.handlers.registry import load_apis
from kbroker.protocol.api_keys import ApiKey

from .names import api_key, format_versions

# Releases, oldest first. 0.10 stands for 0.10.2.
RELEASES = (
    *("0.10", "0.11", "1.0", "1.1"),
    *(f"2.{minor}" for minor in range(9)),
    *(f"3.{minor}" for minor in range(10)),
    *(f"4.{minor}" for minor in range(5)),
)

# Newest version of each API, by release.
NEWEST = """
Produce 0.10:2 0.11:3 1.0:5 2.0:6 2.1:7 2.4:8 2.8:9 3.7:10 3.8:11 4.0:12 4.1:13
Fetch 0.10:3 0.11:5 1.0:6 1.1:7 2.0:8 2.1:10 2.3:11 2.7:12 3.1:13 3.5:15 3.7:16 3.9:17 4.1:18
ListOffsets 0.10:1 0.11:2 2.0:3 2.1:4 2.2:5 2.8:6 3.0:7 3.5:8 3.9:9 4.0:10 4.2:11
Metadata 0.10:2 0.11:4 1.0:5 2.0:6 2.1:7 2.3:8 2.4:9 2.8:11 3.1:12 4.0:13
OffsetCommit 0.10:2 0.11:3 2.0:4 2.1:6 2.3:7 2.4:8 3.7:9 4.2:10
OffsetFetch 0.10:2 0.11:3 2.0:4 2.1:5 2.4:6 2.5:7 3.0:8 3.7:9 4.2:10
FindCoordinator 0.10:0 0.11:1 2.0:2 2.4:3 3.0:4 3.8:5 3.9:6
JoinGroup 0.10:1 0.11:2 2.0:3 2.2:4 2.3:5 2.4:6 2.5:7 3.2:9
Heartbeat 0.10:0 0.11:1 2.0:2 2.3:3 2.4:4
LeaveGroup 0.10:0 0.11:1 2.0:2 2.4:4 3.2:5
SyncGroup 0.10:0 0.11:1 2.0:2 2.3:3 2.4:4 2.5:5
DescribeGroups 0.10:0 0.11:1 2.0:2 2.3:3 2.4:5 4.0:6
ListGroups 0.10:0 0.11:1 2.0:2 2.4:3 2.6:4 3.8:5
SaslHandshake 0.10:0 1.0:1
ApiVersions 0.10:0 0.11:1 2.0:2 2.4:3 3.9:4 4.4:5
CreateTopics 0.10:1 0.11:2 2.0:3 2.4:5 2.7:6 2.8:7
DeleteTopics 0.10:0 0.11:1 2.0:2 2.1:3 2.4:4 2.7:5 2.8:6
DeleteRecords 0.11:0 2.0:1 2.6:2
InitProducerId 0.11:0 2.0:1 2.4:2 2.5:3 2.7:4 3.8:5
OffsetForLeaderEpoch 0.11:0 2.0:1 2.1:2 2.3:3 2.8:4
AddPartitionsToTxn 0.11:0 2.0:1 2.7:2 2.8:3 3.6:4 3.8:5
AddOffsetsToTxn 0.11:0 2.0:1 2.7:2 2.8:3 3.8:4
EndTxn 0.11:0 2.0:1 2.7:2 2.8:3 3.8:4 4.0:5
WriteTxnMarkers 0.11:0 2.8:1 4.2:2
TxnOffsetCommit 0.11:0 2.0:1 2.1:2 2.5:3 3.8:4 4.0:5 4.4:6
DescribeAcls 0.11:0 2.0:1 2.5:2 3.3:3
CreateAcls 0.11:0 2.0:1 2.5:2 3.3:3
DeleteAcls 0.11:0 2.0:1 2.5:2 3.3:3
DescribeConfigs 0.11:0 1.1:1 2.0:2 2.6:3 2.8:4
AlterConfigs 0.11:0 2.0:1 2.8:2
AlterReplicaLogDirs 1.0:0 2.0:1 2.8:2
DescribeLogDirs 1.0:0 2.0:1 2.6:2 3.2:3 3.3:4 4.3:5
SaslAuthenticate 1.0:0 2.2:1 2.5:2
CreatePartitions 1.0:0 2.0:1 2.5:2 2.7:3
CreateDelegationToken 1.1:0 2.0:1 2.4:2 3.3:- 3.6:3
RenewDelegationToken 1.1:0 2.0:1 2.5:2 3.3:- 3.6:2
ExpireDelegationToken 1.1:0 2.0:1 2.5:2 3.3:- 3.6:2
DescribeDelegationToken 1.1:0 2.0:1 2.5:2 3.3:- 3.6:3
DeleteGroups 1.1:0 2.0:1 2.4:2 4.4:3
ElectLeaders 2.2:0 2.4:2
IncrementalAlterConfigs 2.3:0 2.4:1
AlterPartitionReassignments 2.4:0 4.1:1
ListPartitionReassignments 2.4:0
OffsetDelete 2.4:0
DescribeClientQuotas 2.6:0 2.8:1
AlterClientQuotas 2.6:0 2.8:1
DescribeUserScramCredentials 2.7:0 3.3:- 3.5:0
AlterUserScramCredentials 2.7:0 3.3:- 3.5:0
DescribeQuorum 3.3:1 3.9:2
UpdateFeatures 2.7:0 3.3:1 4.0:2
DescribeCluster 2.8:0 3.7:1 4.0:2
DescribeProducers 2.8:0
UnregisterBroker 3.3:0
DescribeTransactions 3.0:0
ListTransactions 3.0:0 3.8:1 4.1:2
ConsumerGroupHeartbeat 3.7:0 4.0:1
ConsumerGroupDescribe 3.8:0 4.0:1
ListConfigResources 3.7:0 4.1:1
DescribeTopicPartitions 3.8:0
ShareGroupHeartbeat 4.1:1
ShareGroupDescribe 4.1:1
ShareFetch 4.1:1 4.2:2
ShareAcknowledge 4.1:1 4.2:2
AddRaftVoter 3.9:0 4.2:1
RemoveRaftVoter 3.9:0
InitializeShareGroupState 4.1:0
ReadShareGroupState 4.1:0
WriteShareGroupState 4.1:0 4.2:1
DeleteShareGroupState 4.1:0
ReadShareGroupStateSummary 4.1:0 4.2:1
StreamsGroupHeartbeat 4.2:0 4.4:1
StreamsGroupDescribe 4.2:0 4.4:1
DescribeShareGroupOffsets 4.1:0 4.2:1
AlterShareGroupOffsets 4.1:0
DeleteShareGroupOffsets 4.1:0
StreamsGroupTopologyDescriptionUpdate 4.4:0
UnregisterController 4.4:0
"""

# Oldest versions since 4.0 (KIP-896); in earlier releases the oldest version of each API is 0.
OLDEST_SINCE_4_0 = {
    ApiKey.FETCH: 4,
    ApiKey.LIST_OFFSETS: 1,
    ApiKey.OFFSET_COMMIT: 2,
    ApiKey.OFFSET_FETCH: 1,
    ApiKey.CREATE_TOPICS: 2,
    ApiKey.DELETE_TOPICS: 1,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 2,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.DESCRIBE_ACLS: 1,
    ApiKey.CREATE_ACLS: 1,
    ApiKey.DELETE_ACLS: 1,
    ApiKey.DESCRIBE_CONFIGS: 1,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 1,
    ApiKey.CREATE_DELEGATION_TOKEN: 1,
    ApiKey.RENEW_DELEGATION_TOKEN: 1,
    ApiKey.EXPIRE_DELEGATION_TOKEN: 1,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: 1,
    ApiKey.SHARE_GROUP_HEARTBEAT: 1,
    ApiKey.SHARE_GROUP_DESCRIBE: 1,
    ApiKey.SHARE_FETCH: 1,
    ApiKey.SHARE_ACKNOWLEDGE: 1,
}

NO_VERSIONS = range(0)
# Version ranges that restrict APIs; other APIs are not restricted.
Limits = Mapping[ApiKey, range]


def limits_of(versions: str | Mapping[str, int | None]) -> Limits:
    """Return the limits of a release ("3.9"), or of the newest versions by API name.

    Args:
        versions: Release, or newest version by API name; None as version hides the API.

    Raises:
        ValueError: The release, API or version does not exist.
    """
    if isinstance(versions, str):
        return _limits_of_release(".".join(versions.split(".")[:2]))
    apis = load_apis()
    return {
        key: NO_VERSIONS if newest is None else _limit(key, newest, apis)
        for key, newest in ((api_key(name), newest) for name, newest in versions.items())
    }


def newest_release(newest: Mapping[int, int]) -> str:
    """Return the newest release all of whose API versions a broker serves, such as "3.9".

    APIs that the broker does not serve at all are ignored, because brokers can disable APIs.

    Args:
        newest: Newest version that the broker serves, by API key.
    """
    return next(
        (
            release
            for release in reversed(RELEASES)
            if all(
                newest.get(key, versions.stop) >= versions.stop - 1
                for key, versions in _limits_of_release(release).items()
            )
        ),
        RELEASES[0],
    )


def _limit(key: ApiKey, newest: int, apis: Mapping[int, Api]) -> range:
    if key not in apis:
        raise ValueError(f"kbroker does not support {key.api_name}; remove it from the versions")
    served = apis[key].versions
    if newest not in served:
        raise ValueError(
            f"{key.api_name} has no version {newest} (valid: {format_versions(served)}, or None to "
            "hide the API)"
        )
    return range(newest + 1)


def _limits_of_release(release: str) -> Limits:
    if release not in RELEASES:
        close = difflib.get_close_matches(release, RELEASES, n=1) or RELEASES[-1:]
        raise ValueError(
            f"unknown Kafka release {release} (valid: {RELEASES[0]} to {RELEASES[-1]}, for example "
            f"{close[0]})"
        )
    newest = {api_key(row.split()[0]): row.split()[1:] for row in NEWEST.strip().splitlines()}
    return {key: _versions_in(release, key, newest.get(key, [])) for key in ApiKey}


def _versions_in(release: str, key: ApiKey, steps: list[str]) -> range:
    number = RELEASES.index(release)
    versions = NO_VERSIONS
    for step in steps:
        since, _, last = step.partition(":")
        if RELEASES.index(since) <= number:
            versions = NO_VERSIONS if last == "-" else range(int(last) + 1)
    first = OLDEST_SINCE_4_0.get(key, 0) if number >= RELEASES.index("4.0") else 0
    return range(first, versions.stop)


def apply_limits(apis: Mapping[int, Api], limits: Limits) -> Mapping[int, Api]:
    """Return the APIs with the versions that are within the limits."""
    kept = {}
    for key, api in apis.items():
        allowed = limits.get(api.key, api.versions)
        first, stop = max(api.versions.start, allowed.start), min(api.versions.stop, allowed.stop)
        if first < stop:
            kept[key] = api._replace(versions=range(first, stop))
    return kept
