"""Check of idempotent producers' sequence numbers, which must be consecutive."""

from __future__ import annotations

from collections import OrderedDict

from kbroker.protocol.records import BatchHeader

# Maximum number of producers tracked; the least recent ones are dropped.
PRODUCERS_MAX = 100_000
_MASK = 0x7FFFFFFF


class Sequences:
    """Sequence numbers of the producers of one partition (KIP-98).

    The first batch seen of a producer may have any sequence, because earlier batches may be
    deleted. A new epoch starts at 0. Unless `gapless` is set (compacted topics lose batches),
    sequences may skip but not repeat.
    """

    def __init__(self, *, gapless: bool) -> None:
        self._gapless = gapless
        # Epoch and last sequence by producer ID, most recent writer last; None: any sequence is
        # valid.
        self._last: OrderedDict[int, tuple[int, int] | None] = OrderedDict()
        self.producers = 0

    def skip(self) -> None:
        """Accept any next sequence of every producer, because batches were skipped."""
        self._last = OrderedDict.fromkeys(self._last)

    def check(self, header: BatchHeader) -> str | None:
        """Check a batch and return a description of its sequence error, or None."""
        producer_id, epoch, sequence = header[9:12]
        if producer_id < 0:
            return None
        if producer_id not in self._last:
            self.producers += 1
        known = self._last.pop(producer_id, None)
        self._last[producer_id] = epoch, header.last_sequence
        if len(self._last) > PRODUCERS_MAX:
            self._last.popitem(last=False)
        wrong = None if known is None else self._wrong(known, epoch, sequence)
        if wrong is None:
            return None
        return f"producer {producer_id} with epoch {epoch} {wrong}"

    def _wrong(self, known: tuple[int, int], epoch: int, sequence: int) -> str | None:
        last_epoch, last = known
        if epoch < last_epoch:
            return f"wrote after epoch {last_epoch}, by which it was fenced"
        if epoch > last_epoch:
            last = -1
        ahead = (sequence - last - 1) & _MASK
        if not ahead:
            return None
        if ahead > _MASK >> 1:
            return f"repeats sequence {sequence} after {last}"
        if self._gapless:
            return f"jumps from sequence {last} to {sequence}"
        return None
