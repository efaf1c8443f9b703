import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.engine.pages import Lease, Ledger, Span

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["grow", "grow", "grow", "end", "truncate", "tidy"]), st.integers(0, 4), st.integers(1, 30)
    ),
    max_size=60,
)


class Memory:
    """What lies in each page, so that moves can be checked: the ledger itself never sees it."""

    def __init__(self, pages):
        self.content = [None] * pages

    def move(self, source, target, count):
        self.content[target : target + count] = self.content[source : source + count]


@given(actions=ACTIONS, extra=st.integers(0, 20))
def test_pages_are_lent_to_one_sequence_at_a_time_and_all_come_back(actions, extra):
    span = Span(tokens=24, reach=24, page_size=4)
    memory = Memory(span.pages + extra)
    ledger = Ledger(span.pages + extra, span, memory.move)
    leases = [Lease() for _ in range(5)]
    for action, which, tokens in actions:
        lease = leases[which]
        if action == "grow":
            length = min(lease.length + tokens, 60)
            missing, free = ledger.needs(lease, length), len(ledger.free)
            assert ledger.lend(lease, length) == (missing <= free)
            if missing <= free:
                lease.length = length
                for number, page in enumerate(lease.pages):
                    memory.content[page] = (which, number)
        elif action == "end":
            ledger.take_back(lease)
        elif action == "truncate" and lease.length <= span.tokens:
            ledger.truncate(lease, min(lease.length, tokens))
        elif action == "tidy":
            ledger.tidy()
        held = [page for lease in leases for page in lease.pages]
        assert len(held) == len(set(held))
        assert set(held) | ledger.free == set(range(ledger.pages))
        assert not set(held) & ledger.free
        for index, lease in enumerate(leases):
            assert [memory.content[page] for page in lease.pages] == [(index, n) for n in range(len(lease.pages))]
            assert lease.straight == (lease.pages == list(range(lease.pages[0], lease.pages[0] + len(lease.pages)))
                                      if lease.pages else True)  # fmt: skip
    for lease in leases:
        ledger.take_back(lease)
    assert ledger.free == set(range(ledger.pages))
    assert ledger._taken == [0] * len(ledger._taken)
    assert ledger._lanes == [None] * len(ledger._lanes)


def test_sequences_that_start_in_free_lanes_grow_without_a_gap():
    span = Span(tokens=24, reach=24, page_size=4)
    ledger = Ledger(4 * span.pages, span, Memory(24).move)
    leases = [Lease() for _ in range(4)]
    for length in range(1, 25):
        for lease in leases:
            assert ledger.lend(lease, length)
    assert [lease.pages for lease in leases] == [list(range(6 * lane, 6 * lane + 6)) for lane in range(4)]


def test_tidying_fills_gaps_from_the_end():
    span = Span(tokens=8, reach=8, page_size=4)
    moves = []
    ledger = Ledger(10, span, lambda *move: moves.append(move))
    leases = [Lease() for _ in range(5)]
    for lease in leases:
        ledger.lend(lease, 8)
    for lease in (leases[0], leases[2]):
        ledger.take_back(lease)
    ledger.tidy()
    assert moves == [(8, 0, 2), (6, 4, 2)]
    assert sorted(lease.pages[0] for lease in leases if lease.pages) == [0, 2, 4]
    ledger.tidy()
    assert len(moves) == 2, "what is tidy stays"


@pytest.mark.parametrize(("start", "most"), [(0, 20), (3, 17), (6, 14), (7, 14), (1000, 14)], ids=str)
def test_a_pass_may_add_what_leaves_the_window_of_its_first_token_whole(start, most):
    assert Span(tokens=20, reach=7, page_size=4).chunk(start) == most


@pytest.mark.parametrize(("start", "most"), [(0, 20), (15, 5), (19, 1), (20, 1), (500, 1)])
def test_past_the_context_tokens_come_one_at_a_time(start, most):
    assert Span(tokens=20, reach=20, page_size=4).chunk(start) == most
