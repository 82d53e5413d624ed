"""Tests of ACL changes of which only some can be stored."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from kbroker.cluster import Cluster
from kbroker.cluster.acl_changes import AT_ONCE
from kbroker.cluster.store import Document
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.security import CreateAclsRequest, DeleteAclsRequest
from kbroker.security.acls import AclOperation, AclResourceType
from kbroker.storage.errors import StorageError

from ..security.test_access import acl_for, grant, guarded, user

pytestmark = pytest.mark.trio
TOPIC, READ = AclResourceType.TOPIC, AclOperation.READ


class FailingStore:
    """Lets a number of changes of ACLs succeed, and rejects the next ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, successes: int) -> None:
        self.left = successes
        transact = Cluster.transact

        async def reject_later(
            cluster: Cluster,
            puts: Mapping[str, Document | None],
            *,
            compares: Mapping[str, int],
            cause: str,
        ) -> int | None:
            if "Acls by" in cause:
                self.left -= 1
                if self.left < 0:
                    raise StorageError("the disk is full")
            return await transact(cluster, puts, compares=compares, cause=cause)

        monkeypatch.setattr(Cluster, "transact", reject_later)


def audited(caplog: pytest.LogCaptureFixture, change: str) -> int:
    """Return the number of audit records of a change."""
    return sum(change in each.getMessage() for each in caplog.records)


async def test_response_and_audit_log_distinguish_stored_from_rejected_acls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kbroker.audit")
    acls = [acl_for(TOPIC, READ, f"t{number}") for number in range(AT_ONCE + 10)]
    async with guarded() as broker, user(broker, "admin") as admin:
        FailingStore(monkeypatch, successes=1)
        response = await admin.ask(ApiKey.CREATE_ACLS, 3, CreateAclsRequest(creations=acls))
        codes = [row.error_code for row in response.results]
        assert codes == [0] * AT_ONCE + [ErrorCode.KAFKA_STORAGE_ERROR] * 10
        assert len(broker.node.cluster.acls) == AT_ONCE
    assert audited(caplog, "ACL added") == AT_ONCE


async def test_response_and_audit_log_distinguish_removed_from_remaining_acls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kbroker.audit")
    cls = DeleteAclsRequest.Filter
    filters = [
        cls(
            resource_type_filter=TOPIC,
            resource_name_filter=name,
            pattern_type_filter=1,
            operation=READ,
            permission_type=1,
        )
        for name in ("first", None, "missing")
    ]
    async with guarded() as broker, user(broker, "admin") as admin:
        await grant(admin, acl_for(TOPIC, READ, "first"))
        await grant(admin, *(acl_for(TOPIC, READ, f"t{number}") for number in range(AT_ONCE)))
        FailingStore(monkeypatch, successes=1)
        response = await admin.ask(ApiKey.DELETE_ACLS, 3, DeleteAclsRequest(filters=filters))
        rows = [(row.error_code, len(row.matching_acls)) for row in response.filter_results]
        assert rows == [(0, 1), (ErrorCode.KAFKA_STORAGE_ERROR, 0), (0, 0)]
        assert len(broker.node.cluster.acls) == 1
    assert audited(caplog, "ACL removed") == AT_ONCE
