"""Which text trains and which is held out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.errors import DataError
from glassformer.train.data.read import Piece
from glassformer.train.data.split import Plan, Routed, Survey, decide

Documents = list[list[str]]
"""Documents as the pieces they come in."""


def pieces(documents: Documents) -> list[Piece]:
    return [Piece(text, at == len(parts)) for parts in documents for at, text in enumerate(parts, start=1)]


def plan(documents: Documents, share: float = 0.1, seed: int = 0, unique: bool = False) -> Plan:
    survey = Survey(share, seed, unique)
    assert list(survey.look(pieces(documents))) == pieces(documents)
    survey.drop_repeated()
    return decide(survey)


def split(documents: Documents, share: float = 0.1, seed: int = 0, unique: bool = False) -> dict[str, list[str]]:
    """The documents of each split; one that doesn't end in its split is marked."""
    found: dict[str, list[str]] = {"train": [], "validation": []}
    fresh = {"train": True, "validation": True}
    for name, text, ends in plan(documents, share, seed, unique).route(pieces(documents)):
        found[name][len(found[name]) if fresh[name] else -1 :] = [("" if fresh[name] else found[name][-1]) + text]
        fresh[name] = ends
    return {
        name: [*texts[:-1], texts[-1] + "…"] if texts and not fresh[name] else texts for name, texts in found.items()
    }


MANY = [[f"document number {number}. " * (1 + number % 7)] for number in range(3000)]


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
def test_of_many_documents_about_the_share_asked_for_is_held_out(share: float):
    halves = split(MANY, share)
    assert sorted(halves["train"] + halves["validation"]) == sorted(text for (text,) in MANY)
    held_out = sum(map(len, halves["validation"])) / sum(len(text) for (text,) in MANY)
    assert abs(held_out - share) < 0.02


def test_the_seed_and_the_content_choose_and_nothing_else():
    assert split(MANY, seed=1)["validation"] != split(MANY, seed=2)["validation"]
    backwards = split(MANY[::-1])["validation"]
    assert backwards[::-1] == split(MANY)["validation"]
    in_pieces = [[text[:7], text[7:]] for (text,) in MANY]
    assert split(in_pieces) == split(MANY)


def test_equal_documents_are_never_in_both_splits():
    twice = MANY[:500] + MANY[:500]
    halves = split(twice)
    assert not set(halves["train"]) & set(halves["validation"])
    assert split(twice, unique=True) == split(MANY[:500])


@pytest.mark.parametrize("length", [2, 10, 1115, 1_115_394])
def test_of_one_document_the_last_characters_are_held_out(length: int):
    text = ("0123456789" * (length // 10 + 1))[:length]
    parts = [text[at : at + 4096] for at in range(0, length, 4096)]
    cut = int(length * 0.9)
    assert split([parts]) == {"train": [text[:cut] + "…"], "validation": [text[cut:]]}
    assert plan([parts]).stream


@given(
    lengths=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=5),
    share=st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.9]),
)
def test_nothing_is_lost_or_moved_by_a_split(lengths: list[list[int]], share: float):
    letters = iter(range(0x4E00, 0x9FFF))
    documents = [["".join(chr(next(letters)) for _ in range(length)) for length in parts] for parts in lengths]
    whole = ["".join(parts) for parts in documents]
    total = len("".join(whole))
    if total == 0 or not 0 < int(total * (1 - share)) < total:
        return
    decided = plan(documents, share)
    routed = list(decided.route(pieces(documents)))
    assert all(isinstance(piece, Routed) for piece in routed)
    assert "".join(sorted(text for _, text, _ in routed)) == "".join(whole)
    assert sum(ends for _, _, ends in routed) == sum(bool(text) for text in whole)
    held_out = sum(len(text) for name, text, _ in routed if name == "validation")
    if decided.cut is None:
        assert share / 2 <= held_out / total <= share * 2
    else:
        assert held_out == total - int(total * (1 - share))


def test_few_documents_of_unlike_length_are_cut_at_a_character():
    documents = [["a" * 1000], ["b" * 10], ["c" * 500], ["d" * 90]]
    assert split(documents) == {
        "train": ["a" * 1000, "b" * 10, "c" * 430 + "…"],
        "validation": ["c" * 70, "d" * 90],
    }
    assert plan(documents).rule == "the last 160 characters of all 4 documents"
    assert not plan(documents).stream


def test_a_document_that_ends_at_the_cut_ends_in_training():
    assert split([["a" * 90, ""], ["b" * 5], ["c" * 5]])["train"] == ["a" * 90]
    assert split([["a" * 85, "a" * 5], ["b" * 5], ["c" * 5]]) == {"train": ["a" * 90], "validation": ["b" * 5, "c" * 5]}


def test_nothing_is_held_out_when_nothing_should_be():
    assert split([["a" * 10], ["b"]], share=0.0) == {"train": ["a" * 10, "b"], "validation": []}


def test_empty_and_repeated_documents_are_left_out():
    survey = Survey(0.0, 0, unique=True)
    documents = [["a"], ["", ""], ["b"], ["a"], ["", "a"]]
    list(survey.look(pieces(documents)))
    survey.drop_repeated()
    assert (survey.empty, survey.repeated) == (1, 2)
    assert [text for _, text, _ in decide(survey).route(pieces(documents))] == ["a", "b"]


def test_too_little_text_is_refused():
    with pytest.raises(DataError, match="no text: every document is empty"):
        plan([[""], [""]])
    with pytest.raises(DataError, match=r"1 characters are too few to hold out 0\.1 of them"):
        plan([["a"]])


def test_text_that_changes_while_it_is_read_is_noticed():
    decided = plan(MANY)
    for other in (MANY[:-1], [*MANY, ["more"]], [*MANY[:-1], ["other"]]):
        with pytest.raises(DataError, match="the text changed while it was being read"):
            list(decided.route(pieces(other)))
