"""Who is served in the next pass, and with which pages. Plain Python: it can be read and tested without a model."""

from collections import deque

from glassformer.engine.pages import Lease, Ledger
from glassformer.engine.sequence import Chunk, Sequence


class Scheduler:
    """First come, first served; passes over prompts and passes over single new tokens take turns.

    batch_size: the most sequences that run at once.
    budget: the most tokens in one pass, padding counted.

    When pages run out, the sequence that came last gives its own back, and will be read again from its start:
    the one that came first can always go on.
    """

    def __init__(self, ledger: Ledger, batch_size: int, budget: int):
        self.ledger, self.batch_size, self.budget = ledger, batch_size, budget
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.resting: list[Sequence] = []
        self._read_last = False

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Done, or not wanted any more: its pages are free again. Removing it twice is no mistake."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.ledger.take_back(sequence.lease)

    def rest(self, sequence: Sequence) -> None:
        """Done for now: its pages stay until somebody else needs them."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.resting.append(sequence)
        else:
            self.remove(sequence)

    def hand_over(self, old: Sequence, new: Sequence) -> None:
        """`new` takes over what a resting sequence remembers, as far as both begin alike."""
        if old not in self.resting:
            return
        self.resting.remove(old)
        shared = 0
        for ours, theirs in zip(old.tokens[: old.lease.length], new.tokens[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        alike = old.source == new.source == ()  # what comes from a source depends on all of it
        if alike and self.ledger.can_truncate(old.lease, shared):
            self.ledger.truncate(old.lease, shared)
            new.lease, old.lease = old.lease, Lease()
            new.reused = shared
        else:
            self.ledger.take_back(old.lease)

    def plan(self) -> list[Chunk]:
        """The next pass, one chunk a sequence; empty when nobody wants anything."""
        self._admit()
        reading = [sequence for sequence in self.running if sequence.pending > 1]
        writing = [sequence for sequence in self.running if sequence.pending == 1]
        self._read_last = bool(reading) and not (writing and self._read_last)
        if self._read_last:
            return self._plan_reading(reading)
        self.ledger.tidy()
        return self._plan_writing(writing)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.batch_size:
            sequence, tokens = self.waiting[0], len(self.waiting[0].tokens)
            # A page to spare for each that runs, or the newcomer would soon have to step back and be read again.
            spare = len(self.ledger.free) - self.ledger.needs(sequence.lease, tokens)
            if spare < len(self.running) or not self.ledger.lend(sequence.lease, tokens):
                if self._wake():
                    continue
                return
            self.running.append(self.waiting.popleft())

    def _plan_reading(self, reading: list[Sequence]) -> list[Chunk]:
        """Prompts side by side, as long as padding takes no more than half of the pass."""
        chunks: list[Chunk] = []
        longest = total = 0
        for sequence in reading:
            count = min(sequence.pending, self.budget, self.ledger.span.chunk(sequence.lease.length))
            longest, total = max(longest, count), total + count
            padded = longest * (len(chunks) + 1)
            if chunks and (padded > self.budget or padded > 2 * total):
                break
            if not self._secure(sequence, count):
                break
            chunks.append(Chunk(sequence, count, last=count == sequence.pending))
        return chunks

    def _plan_writing(self, writing: list[Sequence]) -> list[Chunk]:
        return [Chunk(sequence, 1, last=True) for sequence in writing if self._secure(sequence, 1)]

    def _wake(self) -> bool:
        """Take the pages of the sequence that has rested longest; False when none rests."""
        if not self.resting:
            return False
        self.ledger.take_back(self.resting.pop(0).lease)
        return True

    def _secure(self, sequence: Sequence, count: int) -> bool:
        """Pages for the next `count` tokens, taken from those that came later; False if it had to step back itself."""
        if sequence not in self.running:
            return False
        while not self.ledger.lend(sequence.lease, sequence.lease.length + count):
            if self._wake():
                continue
            youngest = self.running.pop()
            self.ledger.take_back(youngest.lease)
            self.waiting.appendleft(youngest)
            if youngest is sequence:
                return False
        return True
