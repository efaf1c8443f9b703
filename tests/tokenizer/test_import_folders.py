"""Model folders without a tokenizer.json: read as transformers reads them; files that are damaged are refused."""

import json
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from reference_texts import TRICKY, lines, trained

from data_sets import data_set
from glassformer.checkpoint import load_tokenizer
from glassformer.errors import TokenizerError
from glassformer.tokenizer import Tokenizer, read_tokenizer
from glassformer.tokenizer.pretokenize import ALIAS

pytestmark = pytest.mark.real

BERT, GPT2 = ("tokenizer-bert", "bert-base-{}-vocab.txt"), ("tokenizer-gpt2", "")
SPM: dict[str, dict[str, Any]] = {
    "t5": {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "llama": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
              "remove_extra_whitespaces": False},
    "plain": {"model_type": "unigram"},
    "albert": {"model_type": "unigram", "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1,
               "control_symbols": "[CLS],[SEP],[MASK]"},
}  # fmt: skip
FOLDERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("uncased", "BertTokenizer", {"do_lower_case": True}),
    "bert-cased": ("cased", "BertTokenizer", {"do_lower_case": False}),
    "bert-chinese": ("chinese", "BertTokenizer", {"do_lower_case": False}),
    "bert-accents": ("uncased", "BertTokenizer", {"do_lower_case": True, "strip_accents": False}),
    "bert-han": ("uncased", "BertTokenizer", {"do_lower_case": True, "tokenize_chinese_chars": False}),
    "gpt2": ("gpt2", "GPT2Tokenizer", {}),
    "qwen2": ("gpt2", "Qwen2Tokenizer", {}),
    "t5": ("spiece.model", "T5Tokenizer", {}),
    "llama": ("tokenizer.model", "LlamaTokenizer", {"add_bos_token": True}),
    "xlm-roberta": ("sentencepiece.bpe.model", "XLMRobertaTokenizer", {}),
    "albert": ("spiece.model", "AlbertTokenizer", {}),
}
MODEL_OF = {"t5": "t5", "llama": "llama", "xlm-roberta": "plain", "albert": "albert"}


def folder(name: str, path: Path) -> Path:
    files, kind, config = FOLDERS[name]
    if files == "gpt2":
        for file in ("vocab.json", "merges.txt"):
            shutil.copyfile(data_set("tokenizer-gpt2") / file, path / file)
    elif name in MODEL_OF:
        shutil.copyfile(trained(MODEL_OF[name], **SPM[MODEL_OF[name]]), path / files)
    else:
        shutil.copyfile(data_set("tokenizer-bert") / f"bert-base-{files}-vocab.txt", path / "vocab.txt")
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, **config}))
    return path


@pytest.mark.parametrize("name", [name for name in FOLDERS if name != "llama"])
def test_a_folder_is_read_as_transformers_reads_it(name: str, tmp_path: Path):
    ours = load_tokenizer(folder(name, tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = getattr(transformers, FOLDERS[name][1]).from_pretrained(tmp_path)
    for text in [*TRICKY, *lines()[::25]]:
        assert ours.frame(text, parse_special=True).tokens == theirs(text)["input_ids"], text
    pair = theirs("hello world", "今天 good")
    assert ours.frame("hello world", "今天 good").tokens == pair["input_ids"]
    if "token_type_ids" in pair:
        assert ours.frame("hello world", "今天 good").types == pair["token_type_ids"]
    assert ours.vocabulary == len(theirs)


@pytest.mark.parametrize("name", FOLDERS)
def test_it_is_saved_as_a_folder_that_we_and_transformers_read_to_the_same_ids(name: str, tmp_path: Path):
    (tmp_path / "from").mkdir()
    ours = load_tokenizer(folder(name, tmp_path / "from"))
    ours.save(tmp_path / "to")
    again = Tokenizer.load(tmp_path / "to")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "to" / "tokenizer.json"))
    for text in [*TRICKY, *lines()[::200]]:
        ids = ours.frame(text, parse_special=True).tokens
        assert again.frame(text, parse_special=True).tokens == ids
        assert theirs(text)["input_ids"] == ids


def test_llama_begins_with_its_mark_and_goes_on_as_sentencepiece_does(tmp_path: Path):
    ours = load_tokenizer(folder("llama", tmp_path))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    for text in [*TRICKY, *lines()[::25]]:
        assert ours.frame(text).tokens == [1, *theirs.encode(text)]
    assert ours.encode("a</s> b", parse_special=True) == [*theirs.encode("a"), 2, *theirs.encode(" b")]
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer", "legacy": false}')
    newer = load_tokenizer(tmp_path)
    for text in [*TRICKY, *lines()[::25]]:
        assert newer.frame(text).tokens == [1, *theirs.encode(text)]
    assert newer.encode("a</s>b", parse_special=True) == [*theirs.encode("a"), 2, theirs.PieceToId("b")]


def test_t5_has_its_end_and_its_sentinels(tmp_path: Path):
    tokenizer = load_tokenizer(folder("t5", tmp_path))
    assert tokenizer.special["<extra_id_0>"] == tokenizer.vocabulary - 1 == 4099
    assert tokenizer.special["<extra_id_99>"] == 4000
    ids = tokenizer.frame("a <extra_id_0>", parse_special=True).tokens
    assert ids[-2:] == [4099, tokenizer.eos]
    assert tokenizer.eos == 1


@pytest.mark.parametrize("kind", ["roberta", "bart"])
def test_roberta_and_bart_stand_between_their_marks(kind: str, tmp_path: Path):
    tokens = json.loads((data_set("tokenizer-gpt2") / "vocab.json").read_text(encoding="utf-8"))
    del tokens["<|endoftext|>"]
    marks = ("<s>", "<pad>", "</s>", "<unk>")
    ids = {name: index for index, name in enumerate([*marks, *sorted(tokens, key=tokens.__getitem__), "<mask>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    shutil.copyfile(data_set("tokenizer-gpt2") / "merges.txt", tmp_path / "merges.txt")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    ours = load_tokenizer(tmp_path)
    theirs = transformers.RobertaTokenizer.from_pretrained(tmp_path)
    for text in [*TRICKY, *lines()[::100]]:
        assert ours.frame(text, parse_special=True).tokens == theirs(text)["input_ids"]
    mask = ours.special["<mask>"]
    assert ours.frame("a <mask> b", parse_special=True).tokens == [0, *ours.encode("a"), mask, *ours.encode(" b"), 2]
    assert ours.frame("a", "b").tokens == theirs("a", "b")["input_ids"]


def test_marian_takes_pieces_from_each_language_and_ids_from_both(tmp_path: Path):
    source, target = trained("plain", **SPM["plain"]), trained("t5", **SPM["t5"])
    shutil.copyfile(source, tmp_path / "source.spm")
    shutil.copyfile(target, tmp_path / "target.spm")
    theirs = {path: sentencepiece.SentencePieceProcessor(model_file=str(path)) for path in (source, target)}
    pieces = {model.IdToPiece(index): 0 for model in theirs.values() for index in range(model.GetPieceSize())}
    names = ["</s>", "<unk>", *sorted(set(pieces) - {"</s>", "<unk>", "<s>", "<pad>"}), "<pad>"]
    vocabulary = {name: index for index, name in enumerate(names)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    for path, tokenizer in (
        (source, load_tokenizer(tmp_path)),
        (target, load_tokenizer(tmp_path, target=True)),
    ):
        different = 0
        for text in [*TRICKY, *lines()[::10]]:
            expected = [vocabulary.get(piece, 1) for piece in theirs[path].EncodeAsPieces(text)]
            different += tokenizer.encode(text) != expected
            assert tokenizer.frame(text).tokens == [*tokenizer.encode(text), 0]
        assert different == 0
        assert tokenizer.decode(tokenizer.encode("今天 is good")) == "今天 is good"
        assert tokenizer.vocabulary == len(names)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first ranks of cl100k: enough to spell everything, few enough to load at once."""
    path = tmp_path_factory.mktemp("ranks") / "short.tiktoken"
    whole = (data_set("tokenizer-tiktoken") / "cl100k_base.tiktoken").read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[:4000]))
    return path


def test_every_name_of_a_way_to_cut_words_is_a_pattern_that_works(ranks: Path):
    for name in sorted(set(ALIAS.values())):
        tokenizer = read_tokenizer(ranks, pattern=name, special={})
        for text in (*TRICKY, *lines()[::500]):
            assert tokenizer.decode(tokenizer.encode(text)) == text
    assert set(ALIAS.values()) <= set(ALIAS)
    with pytest.raises(TokenizerError, match="doesn't say how words are cut"):
        read_tokenizer(ranks)


def test_ways_to_cut_differ_where_their_models_do(ranks: Path):
    cut = {
        name: [read.decode([token]) for token in read.encode("1234 x。\n\nX")]
        for name in ("llama3", "qwen2", "smollm", "deepseek-llm")
        for read in [read_tokenizer(ranks, pattern=name, special={})]
    }
    assert cut["llama3"][:2] == ["12", "3"]
    assert cut["qwen2"][:4] == cut["smollm"][:4] == ["1", "2", "3", "4"]
    assert cut["llama3"][-2:] == ["。\n\n", "X"]
    assert cut["deepseek-llm"][-3:] == ["\n", "\n", "X"]


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(TokenizerError) as caught:
        read_tokenizer(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_damaged_files_are_refused_in_a_line(tmp_path: Path):
    (tmp_path / "x.model").write_bytes(b"")
    assert "it has no pieces" in refusal(tmp_path / "x.model")
    (tmp_path / "x.model").write_bytes(b"\x0a\xff\xff\xff\xff\x0f")
    assert "in the middle of a field" in refusal(tmp_path / "x.model")
    (tmp_path / "vocab.txt").write_text("a\nb\na\n")
    assert "'a' occurs twice (lines 1 and 3)" in refusal(tmp_path)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    assert "it has no [UNK]" in refusal(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    assert "expected UTF-8 text" in refusal(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    assert "needs vocab.json beside it" in refusal(tmp_path / "merges.txt")
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    assert "line 2: expected two tokens that make a third, got 'a b'" in refusal(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 0, "ab": 1}')
    assert "two tokens have the same id" in refusal(tmp_path)
    (tmp_path / "x.tiktoken").write_text("YQ== 0\nnonsense\n")
    assert "line 2: expected a token in base64" in refusal(tmp_path / "x.tiktoken", pattern="gpt-2")
    (tmp_path / "x.tiktoken").write_text("YQ== 0\n")
    assert "255 of the 256 bytes have no rank" in refusal(tmp_path / "x.tiktoken", pattern="gpt-2")
    assert "no such file" in refusal(tmp_path / "nowhere")


def test_any_byte_of_a_sentencepiece_model_may_be_wrong(tmp_path: Path):
    """A changed byte gives a tokenizer that works or an error of one line, never anything else."""
    whole, path = (data_set("tokenizer-spm") / "test_model.model").read_bytes(), tmp_path / "x.model"
    chance, refusals = random.Random(0), list[str]()
    for turn in range(100):
        content = bytearray(whole)
        # Half of them near the beginning of the table of normalisation, which is most of the file.
        place = chance.randrange(len(whole)) if turn % 2 else chance.randrange(14_000)
        content[place] = chance.randrange(256)
        path.write_bytes(content if turn % 10 else content[:place])
        try:
            tokenizer = read_tokenizer(path)
        except TokenizerError as error:
            refusals.append(str(error))
        else:
            for text in TRICKY:
                tokenizer.decode(tokenizer.encode(text))
    assert len(refusals) > 10
    assert not any("\n" in message for message in refusals)
