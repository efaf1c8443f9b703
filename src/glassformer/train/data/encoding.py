"""Guess how a file writes its characters: byte-order mark, strict UTF-8, then GB18030 or Big5 by score."""

import codecs
from typing import BinaryIO, NamedTuple

from glassformer.errors import DataError

BLOCK = 1 << 18
SAMPLE = 1 << 16
"""Characters beyond ASCII that are looked at to tell GB18030 from Big5."""
LEAST = 0.33
"""The least share of common characters: running Chinese has 0.37 to 0.75, what is none 0 to 0.24."""

MARKS = (  # UTF-32's little-endian mark begins with UTF-16's, so it is asked first
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with a byte-order mark"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
CHINESE = (("gb18030", "GB18030"), ("big5hkscs", "Big5"))

# The most frequent characters of modern Chinese, then the traditional forms among them and some of older texts.
COMMON = frozenset(
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成"
    "方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十民第公此已工"
    "使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政美相见被利什二等产或新己制身果加西斯月话合回特代内信表"
    "化老给世位次度门任常先海通教儿原东声提立及比员解水名真论处走义各入几口认条平系气题活尔更别打女变四神总何电数安少报才结"
    "反受目太量再感建务做接必场件计管期市直德资命山金指克许统区保至队形社便空决治展马科司五基眼书非则听白却界达光放强即像难"
    "且权思王象完设式色路记南品住告类求据程北边死张该交规万取拉格望觉术领共确传师观清今切院让识候带导争运叫吃谁爱喜欢吗呢吧"
    "這個們來為國說時會過發後裡裏種經麼學現當沒動還進樣開從實軍無與長機點業將兩間問並應戰頭體見產話關門員聲東兒給處義幾認條"
    "氣題別變總電數報結務場計資許統區隊決馬書則聽卻達強難權設記類據邊張該規萬術領確傳師觀讓識帶導爭運對於著爾論愛歡嗎誰"
    "曰吾其乃夫君臣侯兮何矣哉焉若故莫未皆亦雲云風风花春秋夜江河酒歌客人詩诗城千百年夕朝古流落葉叶雨雪青紅红玉香空孤遠远歸归"
)


class Encoding(NamedTuple):
    """A codec of Python and what to call it before people."""

    codec: str
    label: str


class UnfitFileError(DataError):
    """A file that holds no text we can read: an error when it was named, left out when met in a folder."""

    reason = "unfit"


class EmptyFileError(UnfitFileError):
    """A file without a byte."""

    reason = "empty"


class BinaryFileError(UnfitFileError):
    """A file that holds bytes, not text."""

    reason = "binary"


class UnknownEncodingError(UnfitFileError):
    """Text in an encoding that can't be told from its bytes."""

    reason = "of unknown encoding"


def named(name: str) -> Encoding:
    """The encoding that a user asked for.

    Raises:
        DataError: Python has no such text encoding.
    """
    try:
        info = codecs.lookup(name)
        "".encode(info.name)  # base64 and its like are codecs too, but not of text
    except (LookupError, UnicodeError):
        raise DataError(
            f"unknown encoding {name!r}", where="--encoding", do="try utf-8, gb18030, big5, latin-1 or utf-16"
        ) from None
    return Encoding(info.name, f"{name} (as asked)")


def guess(file: BinaryIO, where: object) -> Encoding:
    """The encoding of a whole file, read from its beginning; UTF-8 is checked to the last byte, in bounded memory.

    Raises:
        EmptyFileError: not a byte in it.
        BinaryFileError: a NUL byte, and no byte-order mark that explains it.
        UnknownEncodingError: not UTF-8, and as GB18030 or Big5 not a usual text either.
    """
    head = _head(file, where)
    for mark, codec, label in MARKS:
        if head.startswith(mark):
            return Encoding(codec, label)
    fault = _utf8_fault(file, where)
    if fault is None:
        return Encoding("utf-8", "UTF-8")
    best, (codec, label) = max((_commonness(file, chinese[0]), chinese) for chinese in CHINESE)
    if best < LEAST:
        raise UnknownEncodingError(
            f"neither UTF-8 ({fault}) nor Chinese in GB18030 or Big5",
            where=where,
            do="name its encoding, for example prepare --encoding latin-1",
        )
    return Encoding(codec, label)


def confirm(file: BinaryIO, asked: Encoding, where: object) -> Encoding:
    """The encoding that a user asked for, if the file can be text in it.

    Raises:
        EmptyFileError: not a byte in it.
        BinaryFileError: a NUL byte, and no encoding that has them in letters.
    """
    _head(file, where)
    if not asked.codec.startswith(("utf-16", "utf-32")):
        file.seek(0)
        offset = 0
        while block := file.read(BLOCK):
            _refuse_nul(block, offset, where)
            offset += len(block)
    return asked


def _head(file: BinaryIO, where: object) -> bytes:
    file.seek(0)
    head = file.read(4)
    if not head:
        raise EmptyFileError("the file is empty", where=where, do="name a file that holds text")
    return head


def _refuse_nul(block: bytes, offset: int, where: object) -> None:
    if b"\0" in block:
        what = f"a binary file, not text (byte {offset + block.index(0)} is NUL)"
        do = "leave it out; UTF-16 without a mark needs its name: prepare --encoding utf-16-le"
        raise BinaryFileError(what, where=where, do=do)


def _utf8_fault(file: BinaryIO, where: object) -> str | None:
    """None when every byte of the file is UTF-8, else the first byte that isn't."""
    file.seek(0)
    decoder = codecs.getincrementaldecoder("utf-8")()
    fault, offset = None, 0
    while block := file.read(BLOCK):
        _refuse_nul(block, offset, where)
        if fault is None:
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                at = error.start + offset - (len(error.object) - len(block))
                fault = f"byte {at} is 0x{error.object[error.start]:02X}"
        offset += len(block)
    if fault is None and decoder.getstate()[0]:
        fault = f"it ends inside a character, at byte {offset}"
    return fault


def _commonness(file: BinaryIO, codec: str) -> float:
    """The share of common Chinese characters among the letters beyond ASCII of a sample; 0 when it doesn't decode."""
    file.seek(0)
    decoder = codecs.getincrementaldecoder(codec)()
    letters = common = 0
    while letters < SAMPLE and (block := file.read(BLOCK)):
        try:
            text = decoder.decode(block)
        except UnicodeDecodeError:
            return 0.0
        beyond = [character for character in text if character > "\x7f" and character.isalpha()]
        letters += len(beyond)
        common += sum(character in COMMON for character in beyond)
    return common / letters if letters else 0.0
