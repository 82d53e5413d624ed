"""The background work on the logs of one node."""

from __future__ import annotations

from kbroker.cluster.node_context import NodeContext

from .cleaner import Cleaner
from .folder_watch import FolderWatch
from .moves import ReplicaMoves
from .partitions import Partitions
from .scrubber import Scrubber
from .upkeep import Upkeep


class LogMaintenance:
    """What maintains the logs of one node. The node runs each part.

    Attributes:
        upkeep: Checkpoints, retention and deletion of files.
        cleaner: Compaction.
        scrubber: Checks of checksums.
        moves: Moves of replicas between log directories.
        folder_watch: Log directories that refuse writes or fill up.
    """

    def __init__(self, context: NodeContext, partitions: Partitions) -> None:
        self.upkeep = Upkeep(context, partitions)
        self.cleaner = Cleaner(context, partitions, self.upkeep)
        self.scrubber = Scrubber(context, partitions)
        self.moves = ReplicaMoves(context, partitions)
        self.folder_watch = FolderWatch(context, partitions)

    def settings_changed(self) -> None:
        """Apply changed settings of the node now."""
        self.cleaner.look_again()
        self.scrubber.look_again()
