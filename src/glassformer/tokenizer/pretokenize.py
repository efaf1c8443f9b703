"""How published tokenizers cut text into words before bytes are merged, by the names that files give these ways."""

from typing import Any

from glassformer.errors import TokenizerError

ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN2 = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN35 = ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASES = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s"
GPT4O = CASES % (f"{ENDINGS}?", f"{ENDINGS}?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
TEKKEN = CASES % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    r" ?[\p{P}\p{S}]+[\r\n]*|" + SPACES
)
# The letters that DeepSeek's first models list, most of those with two cases: first and last of each run.
CASED_RUNS = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5
3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15
1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3
1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139
213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787
A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2
118A0-118DF 1E900-1E943
"""
CASED = "".join("-".join(rf"\x{{{end}}}" for end in run.split("-")) for run in CASED_RUNS.split())
FLOW = r" ?[^(\s|.,!?…。，、।۔،)]+"

WAYS: dict[str, tuple[str, ...]] = {
    "gpt-2": (GPT2,),
    "llama-bpe": (LLAMA3,),
    "qwen2": (QWEN2,),
    "qwen35": (QWEN35,),
    "gpt-4o": (GPT4O,),
    "tekken": (TEKKEN,),
    "smollm": (r"\p{N}", GPT2),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?[{CASED}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+\z",
        "[一-龥ࠀ-一가-퟿]+",
        r"\p{N}",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "deepseek-v3": (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3),
    "bloom": (FLOW,),
    "viking": (FLOW, r"\p{N}"),
}
"""Each way: patterns, of which each cuts further what those before it left."""

ALSO = {
    "gpt-2": "default phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe mpt olmo jais "
    "trillion r50k_base p50k_base",
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe chatglm-bpe glm4 cl100k_base",
    "qwen2": "deepseek-r1-qwen stablelm2 hunyuan megrez grok-2",
    "gpt-4o": "llama4 o200k_base minimax-m2",
    "smollm": "starcoder refact command-r codeshell exaone minerva-7b mellum2",
    "deepseek-v3": "hunyuan-dense",
    "bloom": "poro-chat gpt3-finnish",
}
ALIAS = {other: name for name, others in ALSO.items() for other in others.split()} | {name: name for name in WAYS}
WHOLE_WORDS = {"llama-bpe", "gpt-4o", "tekken"}
"""Ways whose tokenizers take a word that is a token as it stands, without looking at merges."""


def cutting(name: object) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer that cuts in the way of that name, and then spells words in bytes.

    Raises:
        TokenizerError: a name that isn't known.
    """
    way = ALIAS.get(name) if isinstance(name, str) else None
    if way is None:
        what = f"words are cut in the way of {str(name)[:40]!r}, which isn't known"
        raise TokenizerError(what, do=f"known: {', '.join(sorted(ALIAS))}")
    return cutting_by(WAYS[way])


def cutting_by(patterns: tuple[str, ...]) -> list[dict[str, Any]]:
    """The same for patterns (regular expressions in the syntax of Oniguruma)."""
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return [*splits, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]


def takes_whole_words(name: str) -> bool:
    return ALIAS.get(name) in WHOLE_WORDS
