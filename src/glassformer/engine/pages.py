"""The ledger of the cache: which pages are free and which sequence holds which. Plain arithmetic, no tensors.

Slots of memory are cut into pages, so that sequences may grow without knowing how long they will be. Pages lie in
lanes, each as long as the longest sequence: one that starts a free lane grows through it without a gap, and the cache
is then read where it lies. When no lane is free, any page will do, and reading has to collect them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from glassformer.errors import RequestError

Move = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Span:
    """How much of its past a sequence keeps: `tokens`, of which a query sees the last `reach`, itself included."""

    tokens: int
    reach: int
    page_size: int

    @property
    def pages(self) -> int:
        """The most pages one sequence holds; past them it writes over its oldest tokens, as in a ring."""
        return -(-self.tokens // self.page_size)

    @property
    def slots(self) -> int:
        return self.pages * self.page_size

    def chunk(self, start: int) -> int:
        """The most tokens one pass may add from position `start` on, without forgetting what the first still needs."""
        return self.tokens - min(start, self.reach - 1)


@dataclass(eq=False)
class Lease:
    """The pages one sequence holds, in order, and how many tokens of it have been remembered.

    `straight` is true while the pages lie one behind the other. `seat` is the place of what is kept for the sequence as
    a whole, however long it is: a state of its own, which never moves.
    """

    pages: list[int] = field(default_factory=list)
    length: int = 0
    straight: bool = True
    seat: int | None = None


class Ledger:
    """Lends pages and takes them back. `move(source, target, count)` must copy pages; `tidy` asks for it.

    `seats` is how many sequences can be held at once (by default as many as there are pages). With `states` their past
    is in part a state, out of which no token can be taken again.
    """

    def __init__(self, pages: int, span: Span, move: Move, seats: int | None = None, states: bool = False):
        assert pages >= span.pages, "one whole sequence must fit"
        self.pages, self.span, self._move, self.states = pages, span, move, states
        self.free, self.free_seats = set(range(pages)), set(range(pages if seats is None else seats))
        self._lanes: list[Lease | None] = [None] * (pages // span.pages)
        self._taken = [0] * (len(self._lanes) + 1)  # pages in use, lane by lane; the last is what no lane covers

    def needs(self, lease: Lease, tokens: int) -> int:
        """Pages that `lease` still lacks to remember `tokens` tokens in all."""
        return min(-(-tokens // self.span.page_size), self.span.pages) - len(lease.pages)

    def lend(self, lease: Lease, tokens: int) -> bool:
        """Give `lease` room for `tokens` tokens in all; False, and nothing changed, when pages or seats run out."""
        missing = self.needs(lease, tokens)
        if missing > len(self.free) or (lease.seat is None and not self.free_seats):
            return False
        if lease.seat is None:
            lease.seat = min(self.free_seats)
            self.free_seats.remove(lease.seat)
        for _ in range(missing):
            self._take(lease, self._next_page(lease))
        return True

    def take_back(self, lease: Lease) -> None:
        """All pages of `lease` are free again, and it remembers nothing."""
        self._give(lease, 0)
        lease.length = 0
        if lease.seat is not None:
            self.free_seats.add(lease.seat)
            lease.seat = None

    def can_truncate(self, lease: Lease, tokens: int) -> bool:
        """Whether all that `tokens` tokens would see is still there; a state never goes back."""
        if self.states and 0 < tokens < lease.length:
            return False
        needed = max(0, tokens - self.span.reach + 1)
        return lease.length - needed <= self.span.tokens or tokens == 0

    def truncate(self, lease: Lease, tokens: int) -> None:
        """Forget all but the first `tokens` tokens. What a ring has written over can't be brought back.

        Raises:
            RequestError: a state holds all tokens at once; some of them can't be taken out of it.
        """
        assert 0 <= tokens <= lease.length, f"expected 0 to {lease.length} tokens, got {tokens}"
        if self.states and 0 < tokens < lease.length:
            raise RequestError(
                "this model keeps its past as a state (linear attention), out of which no token can be taken again",
                do="read the sequence anew from its start; prefixes can't be shared, nor tokens be guessed ahead",
            )
        assert self.can_truncate(lease, tokens), "the tokens before it have been overwritten"
        if lease.length <= self.span.slots:
            self._give(lease, -(-tokens // self.span.page_size))
        lease.length = tokens

    def tidy(self) -> None:
        """Move sequences from the last lanes into free ones before them, so that a batch lies in lanes side by side."""
        low, high = 0, len(self._lanes) - 1
        while True:
            while low < high and self._taken[low]:
                low += 1
            while low < high and self._lanes[high] is None:
                high -= 1
            lease = self._lanes[high]
            if low >= high or lease is None or not lease.straight:
                return
            self._move_lease(lease, high, low)

    def _move_lease(self, lease: Lease, source: int, target: int) -> None:
        old, count, length = lease.pages[0], len(lease.pages), lease.length
        self._give(lease, 0)
        for _ in range(count):
            self._take(lease, self._next_page(lease) if lease.pages else target * self.span.pages)
        assert lease.straight
        assert self._lanes[source] is None
        lease.length = length
        self._move(old, lease.pages[0], count)

    def _next_page(self, lease: Lease) -> int:
        if lease.pages:
            follower = lease.pages[-1] + 1
            if follower in self.free:
                return follower
        else:
            for lane, taken in enumerate(self._taken[:-1]):
                if not taken:
                    return lane * self.span.pages
        return max(self.free)

    def _take(self, lease: Lease, page: int) -> None:
        lane = page // self.span.pages
        if not lease.pages and page % self.span.pages == 0 and lane < len(self._lanes):
            self._lanes[lane] = lease
        lease.straight = lease.straight and (not lease.pages or page == lease.pages[-1] + 1)
        self.free.remove(page)
        self._taken[lane] += 1
        lease.pages.append(page)

    def _give(self, lease: Lease, keep: int) -> None:
        for page in lease.pages[keep:]:
            self.free.add(page)
            lane = page // self.span.pages
            self._taken[lane] -= 1
            if lane < len(self._lanes) and self._lanes[lane] is lease and page == lease.pages[0]:
                self._lanes[lane] = None
        del lease.pages[keep:]
        lease.straight = all(b == a + 1 for a, b in pairwise(lease.pages))
