"""Sequence numbers of idempotent producers: each batch goes on where the one before it ended."""

from __future__ import annotations

from collections import OrderedDict

from kbroker.protocol.records import BatchHeader

PRODUCERS_MAX = 100_000
"""How many producers are remembered; of more the ones that wrote longest ago are forgotten."""
_MASK = 0x7FFFFFFF


class Sequences:
    """The producers of one partition (KIP-98).

    A producer's first batch may have any number: earlier ones may be deleted. A new epoch begins
    at 0. Without `gapless` (compacted topics lose batches) numbers may jump, never repeat.
    """

    def __init__(self, *, gapless: bool) -> None:
        self._gapless = gapless
        self._last: OrderedDict[int, tuple[int, int] | None] = OrderedDict()
        """Epoch and last sequence by producer id, the latest writer at the end; None: any is next."""
        self.producers = 0

    def skip(self) -> None:
        """Batches were not seen, of whom is not known: every producer may go on anywhere."""
        self._last = OrderedDict.fromkeys(self._last)

    def check(self, header: BatchHeader) -> str | None:
        """Take note of a batch; returns what is wrong with its sequence, in words."""
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
            return f"writes after its epoch {last_epoch}: it was fenced"
        if epoch > last_epoch:
            last = -1
        ahead = (sequence - last - 1) & _MASK
        if not ahead:
            return None
        if ahead > _MASK >> 1:
            return f"writes sequence {sequence} again, it was at {last}"
        if self._gapless:
            return f"jumps from sequence {last} to {sequence}"
        return None
