"""Texts that tokenizers are trained on here, and texts that break careless ones."""

from pydoc_data import topics

from hypothesis import strategies as st

CHINESE = (
    "话说天下大势，分久必合，合久必分。周末七国分争，并入于秦。及秦灭之后，楚、汉分争，又并入于汉。"
    "今天天气真好，我们去公园走走吧。“不错！”他说，“公园里的花都开了。”第二天，天气又不好了，我们没有去公园。\n"
)
CODE = "def walk(tree, depth=0):\n    for node in tree:\n\t\tyield depth, node['name']  # 0x41\r\n"
TEXT = [topics.topics["assignment"][:12000], CHINESE * 3, CODE * 3]

HARD = (
    "",
    " ",
    "  two spaces, trailing too  ",
    "It's Alice's; we'll see, don't you?",
    "今天天气真好，我们去Python公园吧。\n龘靐齉",
    CODE,
    "👨‍👩‍👧‍👦 👍🏽 ❤️ 🇨🇳",
    "e\u0301 a\u0308\u0304 \u0301",
    "a\r\nb\rc\n\n\nd\t\te",
    "nul \0\0 here\0",
    "<|endoftext|>",
    "say <|endoftext|> or [UNK] [PAD][MASK] or </s>",
    "<0x41> <0xE4><0xBD><0xA0> <0x",
    "▁under ▁▁ Ġbyte Ċ",
    "##ing # # ##",
    "\ufeffmark \ufffd \u200b \u00a0 \u3000 \U0010ffff",
    "1234567890 3.14159 １２３ Ⅷ ٣",
    "ภาษาไทย ひらがな カタカナ 한국어 العربية",
    " " * 100 + "x" + "=" * 100 + "长" * 100,
)


def texts() -> st.SearchStrategy[str]:
    """Any Unicode text, with pieces of the hard ones in it."""
    anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    return st.lists(st.one_of(anything, st.sampled_from([text[:20] for text in HARD])), max_size=6).map("".join)
