"""Learning a Unigram vocabulary: too many pieces at first, then those that the text misses least are dropped.

After Kudo (2018), "Subword Regularization", section 3.2, with two choices of its own. The first pieces come from BPE
merges (a suffix array needs many times the memory of the text), and pieces are counted on the best segmentation
instead of over all of them. All counts are then integers, whose sums don't depend on the order of threads or words:
the same text always gives the same vocabulary, which the library's own trainer doesn't promise.
"""

import math
from collections import Counter

import numpy as np
from tokenizers import Tokenizer, models, trainers

from glassformer.tokenizer.split import words

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SURPLUS = 4  # first pieces for each final one
COVERAGE = 0.9995  # share of the text whose characters keep a piece of their own, whatever the pieces around them
SHRINK = 0.75  # what one round of pruning keeps
LONGEST = 16  # characters in a piece
SMOOTHING = 0.5  # added to every count: a piece unseen in the best segmentation is rare, not impossible
RAREST = -20.0  # log-probability of a byte token: less than that of any piece of a sample of this size
BATCH = 8192


class UnigramTrainer:
    """Finds the pieces that make a text most probable when each piece is drawn by itself."""

    def __init__(self, sample: list[str], places: int):
        """`sample` is the text, `places` the number of pieces wanted beside the 256 bytes."""
        split = words()
        count = Counter(word for text in sample for word, _ in split.pre_tokenize_str(text))
        self.sample, self.places = sample, places
        self.words, self.counts = list(count), np.fromiter(count.values(), np.int64, len(count))

        self.alphabet = self._frequent_characters()

    def train(self) -> dict[str, float]:
        """Log-probability of each piece, most probable first; fewer than `places` when the text has no more."""
        score = self._first_pieces()
        while len(score) > self.places:
            count = self._count(score)
            score = self._prune(_log_probability(count), count)
        for _ in range(2):
            score = _log_probability(self._count(score))
        return dict(sorted(score.items(), key=lambda item: (-item[1], item[0])))

    def _frequent_characters(self) -> set[str]:
        """The characters that new words are most likely to need; at most half of the places."""
        count: Counter[str] = Counter()
        for word, times in zip(self.words, self.counts.tolist(), strict=True):
            for character in word:
                count[character] += times
        missing, frequent = COVERAGE * count.total(), set[str]()
        for character, times in sorted(count.items(), key=lambda item: (-item[1], item[0])):
            if missing <= 0 or len(frequent) >= self.places // 2:
                break
            frequent.add(character)
            missing -= times
        return frequent

    def _first_pieces(self) -> dict[str, float]:
        alphabet = {character for word in self.words for character in word}
        rust = Tokenizer(models.BPE())
        rust.pre_tokenizer = words()
        size = len(alphabet) + SURPLUS * self.places
        trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, max_token_length=LONGEST, show_progress=False)
        rust.train_from_iterator(self.sample, trainer)
        # All pieces cost the same to begin with: the first count is of the fewest pieces that spell the text.
        pieces = sorted(rust.get_vocab())
        return dict.fromkeys(pieces, -math.log(len(pieces)) if pieces else 0.0)

    def _count(self, score: dict[str, float]) -> dict[str, int]:
        """How often each piece occurs in the best segmentation of the text."""
        model = Tokenizer(unigram_model(score))
        total = np.zeros(len(BYTES) + len(score), np.int64)
        for start in range(0, len(self.words), BATCH):
            encoded = [encoding.ids for encoding in model.encode_batch_fast(self.words[start : start + BATCH])]
            times = np.repeat(self.counts[start : start + BATCH], [len(ids) for ids in encoded])
            np.add.at(total, np.array([token for ids in encoded for token in ids], np.int64), times)
        return dict(zip(score, total[len(BYTES) :].tolist(), strict=True))

    def _prune(self, score: dict[str, float], count: dict[str, int]) -> dict[str, float]:
        """Without the pieces that cost the text the least probability."""
        keep = max(self.places, int(len(score) * SHRINK))
        total = max(sum(count.values()), 1)
        loss = {piece: math.inf if piece in self.alphabet else _loss(piece, score, count, total) for piece in score}
        kept = set(sorted(score, key=lambda piece: (-loss[piece], piece))[:keep])
        return {piece: value for piece, value in score.items() if piece in kept}


def unigram_model(score: dict[str, float]) -> models.Unigram:
    """A Unigram model: 256 byte tokens, then the pieces.

    An unknown character becomes its bytes, so the model needs no token for it; the library wants one named all the
    same, and byte 0 serves. Byte tokens never match text: no word holds "<0x", since digits stand alone.
    """
    lowest = min(score.values(), default=0.0)
    return models.Unigram([(token, lowest) for token in BYTES] + list(score.items()), 0, True)


def _log_probability(count: dict[str, int]) -> dict[str, float]:
    total = math.log(sum(count.values()) + SMOOTHING * len(count)) if count else 0.0
    return {piece: math.log(times + SMOOTHING) - total for piece, times in count.items()}


def _loss(piece: str, score: dict[str, float], count: dict[str, int], total: int) -> float:
    """Log-probability that the text loses when `piece` is spelled in the next best way."""
    times = count[piece]
    if times == 0:
        return 0.0
    others = _spell_without(piece, score)
    grown = math.log(total + times * (len(others) - 1))
    change = sum(math.log(count.get(other, 0) + times) - grown for other in others)
    return times * (math.log(times) - math.log(total) - change)


def _spell_without(piece: str, score: dict[str, float]) -> list[str]:
    """The most probable way to spell `piece` with other pieces (Viterbi); a character without a piece is its bytes."""
    size = len(piece)
    best, back = [0.0] + [-math.inf] * size, [0] * (size + 1)
    for end in range(1, size + 1):
        for start in range(end):
            part = piece[start:end]
            value = RAREST * len(part.encode()) if end - start == 1 else -math.inf
            value = best[start] + (score.get(part, value) if part != piece else value)
            if value > best[end]:
                best[end], back[end] = value, start
    parts: list[str] = []
    while size:
        part = piece[back[size] : size]
        parts += [part] if part in score and part != piece else [BYTES[byte] for byte in part.encode()]
        size = back[size]
    return parts
