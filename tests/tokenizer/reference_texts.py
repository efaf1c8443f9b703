"""Lines of real text, English and Chinese, and SentencePiece models trained on them by the library itself."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import sentencepiece

from data_sets import data_set

SETS = ("tinyshakespeare", "zh-classics", "wiki-en-demo", "kdconv", "tatoeba-cmn-eng", "gutenberg-botchan")
TRICKY = (
    "", " ", "  a  b ", "<sep>x<sep>  y z<sep>", "a\n\nb\r\n", " <u>  x <u>", "<s>a</s><0x41>",
    "①㍿ ﬁ ｱｲｳ e\u0301 \u00a0x\u3000y\tz\r\n", "👩‍👩‍👧 x", "\u200bx\ufeff", "▁a ▁▁b", "한국어 ก็",
    "aaaaaaaaaaaaaaaa      bbbbbbbb!!!!!!!!!!!!!!", "it'S DON'T 'ſ x'LLm", "龘靐齉 今天天气真好，123456。",
)  # fmt: skip


@cache
def lines(characters: int = 20_000) -> list[str]:
    """The lines at the beginning of every text of the sets, so many characters of each."""
    found: list[str] = []
    for name in SETS:
        for path in sorted(data_set(name).iterdir()):
            if path.suffix in (".txt", ".json", ".tsv"):
                found += path.read_text(encoding="utf-8", errors="replace")[:characters].split("\n")
    return found


@cache
def trained(name: str, **options: Any) -> Path:
    """A .model that the library of SentencePiece learns from these lines."""
    folder = Path(mkdtemp())
    (folder / "text.txt").write_text("\n".join(line for line in lines() if line)[:300_000], encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / name), minloglevel=2, vocab_size=4000,
        character_coverage=0.98, **options,
    )  # fmt: skip
    return folder / f"{name}.model"
