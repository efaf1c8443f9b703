from hypothesis import given
from hypothesis import strategies as st

from glassformer.engine.stop import StopGuard

LETTERS = st.text(alphabet="ab\n。", max_size=40)
STOPS = st.lists(st.text(alphabet="ab\n。", min_size=1, max_size=5), max_size=4)


def before_any(text, stops):
    """The text up to where the stop string that is complete first begins, found by looking at every end in turn."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return None


@st.composite
def text_in_pieces(draw):
    text = draw(LETTERS)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(pieces=text_in_pieces(), stops=STOPS)
def test_no_part_of_a_stop_is_shown_and_all_before_it_is(pieces, stops):
    guard, shown = StopGuard(stops), ""
    text, expected = "".join(pieces), before_any("".join(pieces), stops)
    arrived = ""
    for piece in pieces:
        arrived += piece
        shown += guard.push(piece)
        assert arrived.startswith(shown)
        if expected is not None:
            assert len(shown) <= len(expected), "shown too much: a part of the stop string"
    if expected is None:
        assert not guard.stopped
        assert shown + guard.finish() == text
    else:
        assert guard.stopped
        assert shown == expected
        assert guard.push("more") == ""


@given(pieces=text_in_pieces(), stops=STOPS)
def test_nothing_is_held_back_that_can_not_begin_a_stop(pieces, stops):
    guard, arrived, shown = StopGuard(stops), "", ""
    for piece in pieces:
        arrived += piece
        shown += guard.push(piece)
        if guard.stopped:
            return
        held = arrived[len(shown) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_the_stop_that_is_complete_first_wins_and_the_longest_of_those():
    assert StopGuard(["abcd", "bc"]).push("xabcd") == "xa"
    assert StopGuard(["bc", "abc"]).push("xabc") == "x"
