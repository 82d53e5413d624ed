"""Changes that listeners of the cluster view receive."""

from kbroker.cluster import TopicsChanged
from kbroker.storage.files import MemFiles

from .clusters import open_cluster


async def test_listeners_get_changes_and_cause() -> None:
    cluster = await open_cluster(MemFiles())
    received: list[TopicsChanged] = []
    cluster.subscribe(received.append)
    topic = await cluster.create_topic("a", [[1]], {}, cause="asked")
    await cluster.add_partitions("a", [[1]], cause="grown")
    await cluster.delete_topic("a", cause="gone")
    assert [(e.created, e.changed, e.deleted, e.cause) for e in received] == [
        ([topic], [], [], "asked"),
        ([], [topic], [], "grown"),
        ([], [], [topic], "gone"),
    ]
