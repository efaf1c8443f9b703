"""Where text is cut before tokens are learnt or applied: the pre-tokenizer of BPE and Unigram."""

from tokenizers import Regex, pre_tokenizers

# Every run is bounded. Without a bound, a paragraph of Chinese (no spaces) is one word, and all words are
# distinct: training would then take memory for the whole text. Alternatives are tried in order:
WORDS = "|".join(
    (
        r"'(?i:s|t|re|ve|m|ll|d)(?![\p{L}\p{M}])",  # English endings: it's, we'll
        r"\p{Han}{1,12}",  # Han, apart from what surrounds it
        r"[^\r\n\p{L}\p{M}\p{N}]?[\p{L}&&[^\p{Han}]][[\p{L}\p{M}]&&[^\p{Han}]]{0,23}",  # a word and the mark before it
        r"\p{N}",  # digits one by one: numbers of any length are spelled alike
        r" ?[^\s\p{L}\p{N}]{1,16}[\r\n]{0,2}",  # punctuation, operators and emoji, with the end of the line
        r"\s{0,24}[\r\n]{1,4}",  # line ends
        r"\s{1,24}(?!\S)",  # indentation, but for the last space, which goes with the word
        r"\s{1,24}",
    )
)


def words() -> pre_tokenizers.PreTokenizer:
    """Cuts text into words of bounded length, losing nothing."""
    return pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
