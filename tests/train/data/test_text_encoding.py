"""Guessing how a file writes its characters."""

import io

import pytest

from data_sets import data_set
from glassformer.errors import DataError
from glassformer.train.data.encoding import BinaryFileError, EmptyFileError, UnknownEncodingError, guess, named

SIMPLIFIED = (
    "今天天气真好，我们一起去公园散步吧。孩子们在草地上跑来跑去，老人坐在树下聊天。"
    "他说：“这个地方比我想的还要美。”学习一门语言需要时间，也需要耐心，但是只要每天都读一点书，就会有进步。"
)
TRADITIONAL = (
    "今天天氣真好，我們一起去公園散步吧。孩子們在草地上跑來跑去，老人坐在樹下聊天。"
    "他說：「這個地方比我想的還要美。」學習一門語言需要時間，也需要耐心，但是只要每天都讀一點書，就會有進步。"
)
FRENCH = (
    "Où est le garçon ? L'élève naïf a déjà mangé à côté de la forêt, près de l'hôtel. Ça va être un été très doux.\n"
)
GERMAN = "Über größere Mädchen für schöne Häuser: müßig, ärgerlich, öde. Die Straße heißt Königsallee, natürlich.\n"
RUSSIAN = "Широкая электрификация южных губерний даст мощный толчок подъёму сельского хозяйства. Он этого не знает.\n"
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。何でも薄暗い所で泣いていた。\n"
KOREAN = "대한민국은 민주공화국이다. 모든 권력은 국민으로부터 나온다. 나는 학교에 갑니다.\n"


def codec_of(content: bytes) -> str:
    return guess(io.BytesIO(content), where="text.txt").codec


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "gb18030"])
@pytest.mark.parametrize("text", [SIMPLIFIED, TRADITIONAL, "code = 1  # 注释\n" * 3 + SIMPLIFIED])
def test_chinese_text_is_read_back_whatever_its_encoding(codec: str, text: str):
    content = text.encode(codec)
    assert codec_of(content) == codec
    assert content.decode(codec_of(content)) == text


@pytest.mark.parametrize("repeats", [1, 50])
def test_traditional_text_in_big5_is_told_from_gb18030(repeats: int):
    content = (TRADITIONAL * repeats).encode("big5")
    assert codec_of(content) == "big5hkscs"
    assert content.decode("big5hkscs") == TRADITIONAL * repeats


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_byte_order_mark_tells_wide_encodings(codec: str):
    content = ("\ufeff" + SIMPLIFIED).encode(codec)
    assert content.decode(codec_of(content)) == SIMPLIFIED


def test_a_few_words_suffice_for_gb18030():
    assert codec_of("你好，世界".encode("gb18030")) == "gb18030"


def test_an_ascii_beginning_does_not_hide_gb18030_far_into_the_file():
    assert codec_of(b"plain = 1\n" * 100_000 + SIMPLIFIED.encode("gb18030")) == "gb18030"


@pytest.mark.parametrize("mark", range(1, 4))
def test_utf8_is_told_across_blocks_cut_inside_a_character(mark: int):
    assert codec_of(b"x" * mark + "汉字".encode() * 200_000) == "utf-8"


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        (FRENCH, "latin-1"),
        (GERMAN, "latin-1"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        (JAPANESE, "euc_jp"),
        (JAPANESE, "shift_jis"),
        (KOREAN, "euc_kr"),
        ("naïve café", "latin-1"),
        ("naïve", "latin-1"),
    ],
)
def test_other_encodings_are_refused_instead_of_read_as_chinese_nonsense(text: str, codec: str):
    for repeats in (1, 30):
        with pytest.raises(
            UnknownEncodingError, match=r"text\.txt: neither UTF-8 \(.*\) nor Chinese .*--encoding latin-1"
        ):
            codec_of((text * repeats).encode(codec))


def test_the_fault_in_almost_utf8_is_placed():
    with pytest.raises(UnknownEncodingError, match="byte 700002 is 0xFF"):
        codec_of(b"ab" * 350_000 + "é".encode() + b"\xff" + b" more")
    with pytest.raises(UnknownEncodingError, match="it ends inside a character, at byte 4"):
        codec_of("ab汉".encode()[:-1])


def test_bytes_are_no_text():
    with pytest.raises(BinaryFileError, match=r"text\.txt: a binary file, not text \(byte 6 is NUL\)"):
        codec_of(b"\x89PNG\r\n\x00\x00")
    with pytest.raises(BinaryFileError, match="byte 600000 is NUL"):
        codec_of(b"x" * 600_000 + b"\0")
    with pytest.raises(EmptyFileError, match="the file is empty"):
        codec_of(b"")


def test_an_encoding_asked_for_must_exist():
    assert named("latin1").codec == "iso8859-1"
    for name in ("latin-99", "base64"):
        with pytest.raises(DataError, match=f"--encoding: unknown encoding '{name}'"):
            named(name)


@pytest.mark.real
def test_real_books_and_dialogues_are_told_in_both_chinese_encodings():
    books = [*data_set("zh-classics").glob("*.txt"), data_set("kdconv") / "travel_dev.json"]
    for book in books:
        assert codec_of(book.read_text(encoding="utf-8").encode("gb18030")) == "gb18030", book
    for name in ("poet.tang.0.json", "ci.song.0.json"):  # in traditional characters
        text = (data_set("chinese-poetry") / name).read_text(encoding="utf-8")
        assert codec_of(text.encode("big5hkscs", errors="ignore")) == "big5hkscs", name
        assert codec_of(text.encode("gb18030")) == "gb18030", name
