"""The background tasks for the logs of one node."""

from __future__ import annotations

from kbroker.cluster.node_context import NodeContext

from .cleaner import Cleaner
from .log_dir_monitor import LogDirMonitor
from .log_dir_mover import LogDirMover
from .log_manager_tasks import LogManagerTasks
from .partitions import Partitions
from .scrubber import Scrubber


class LogMaintenance:
    """The tasks that maintain the logs of one node. The node runs each of them.

    Attributes:
        log_manager_tasks: Checkpoints, retention and deletion of files.
        cleaner: Compaction.
        scrubber: Background check of CRCs.
        log_dir_mover: Moves of replicas between log directories.
        log_dir_monitor: Detection of read-only and nearly full log directories.
    """

    def __init__(self, context: NodeContext, partitions: Partitions) -> None:
        self.log_manager_tasks = LogManagerTasks(context, partitions)
        self.cleaner = Cleaner(context, partitions, self.log_manager_tasks)
        self.scrubber = Scrubber(context, partitions)
        self.log_dir_mover = LogDirMover(context, partitions)
        self.log_dir_monitor = LogDirMonitor(context, partitions)

    def settings_changed(self) -> None:
        """Apply changed settings of the node now."""
        self.cleaner.wake()
        self.scrubber.wake()
