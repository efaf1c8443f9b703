"""`prepare`: text files to a folder of token shards, in a few passes (survey, tokenizer, tokens) of bounded memory."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from glassformer.checkpoint import load_tokenizer
from glassformer.errors import DataError
from glassformer.tokenizer import KINDS, Tokenizer, train_tokenizer
from glassformer.train.data.clean import Changes, clean
from glassformer.train.data.encoding import EmptyFileError, Encoding, UnfitFileError, confirm, guess, named
from glassformer.train.data.files import TextFile, find
from glassformer.train.data.meta import (
    META,
    SPLITS,
    CleaningReport,
    DataMeta,
    PrepareOptions,
    PrepareReport,
    Split,
    SplitMeta,
)
from glassformer.train.data.read import Piece, open_bytes, read
from glassformer.train.data.shards import ShardWriter, building, check_target
from glassformer.train.data.split import Plan, Survey, decide

TOGETHER = 1 << 18
"""Characters tokenised in one call: enough to keep all cores busy, little enough to keep memory small."""
EXAMPLES = 5


class Progress(NamedTuple):
    """How far a stage is: `done` of `total` bytes or characters (None: not known)."""

    stage: Literal["looking", "reading", "sampling", "training the tokenizer", "writing tokens"]
    done: int
    total: int | None


Report = Callable[[Progress], None]


@dataclass
class Corpus:
    """Files with their encodings, readable as one stream of documents as often as needed."""

    options: PrepareOptions
    files: list[tuple[TextFile, str]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    encodings: Counter[str] = field(default_factory=Counter)
    changes: Changes = field(default_factory=Changes)

    def pieces(self, changes: Changes | None = None) -> Iterator[Piece]:
        """All documents in order, cleaned if so asked; `changes` counts what that did."""
        for file, codec in self.files:
            pieces = read(file, codec, self.options.split_on)
            yield from clean(pieces, changes or Changes()) if self.options.clean else pieces

    def size(self) -> int | None:
        """Bytes on disk, when those are about the bytes to read."""
        plain = all(not file.gzipped and file.form != "parquet" for file, _ in self.files)
        return sum(file.path.stat().st_size for file, _ in self.files) if plain else None

    def skip(self, file: TextFile, error: UnfitFileError) -> None:
        self.skipped[error.reason] += 1
        if len(self.examples) < EXAMPLES and not isinstance(error, EmptyFileError):
            self.examples.append(f"{file.path} ({error.reason})")


def prepare(
    paths: Sequence[Path | str],
    tokenizer: str | Path,
    out: Path,
    options: PrepareOptions | None = None,
    progress: Report = lambda _: None,
) -> PrepareReport:
    """Reads text from `paths` and writes tokens into the folder `out`, which appears whole or not at all.

    `tokenizer`: a kind to train on the training split (char, bpe, wordpiece, unigram), or the folder of a trained one.
    The same text and options give the same folder, byte for byte.

    Raises:
        DataError: text that can't be found or read, an `out` that is in the way or can't be written.
        TokenizerError: a tokenizer that can't be trained or loaded.
    """
    options, out = options or PrepareOptions(), Path(out)
    ready = _ready_tokenizer(tokenizer, options)
    check_target(out, [Path(path) for path in paths])
    corpus = look([Path(path) for path in paths], out, options, progress)
    survey = _survey(corpus, progress)
    plan = decide(survey)
    ready = ready or train_tokenizer(str(tokenizer), _training_text(corpus, plan, progress), options.vocab_size)
    with building(out) as folder:
        ready.save(folder)
        splits = _write(corpus, plan, ready, folder, progress)
        report = _report(corpus, survey, plan, ready, splits)
        meta = DataMeta(
            tokenizer=ready.fingerprint,
            vocabulary=ready.vocabulary,
            dtype=_dtype(ready),
            stream=plan.stream,
            splits=splits,
            options=options,
            report=report,
        )
        (folder / META).write_text(meta.to_json(), encoding="utf-8")
    return report


def look(paths: Sequence[Path], out: Path, options: PrepareOptions, progress: Report = lambda _: None) -> Corpus:
    """Finds the files and their encodings. In folders, what isn't text is left out and counted.

    Raises:
        DataError: a named file that is empty, binary, or of unknown encoding; or no text at all.
    """
    asked = named(options.encoding) if options.encoding is not None else None
    found, skipped = find(paths, out)
    corpus = Corpus(options, skipped=skipped)
    total, done = sum(file.path.stat().st_size for file in found), 0
    for file in found:
        progress(Progress("looking", done, total))
        done += file.path.stat().st_size
        try:
            kind = _encoding(file, asked)
        except UnfitFileError as error:
            if file.named:
                raise
            corpus.skip(file, error)
            continue
        corpus.files.append((file, kind.codec))
        corpus.encodings[kind.label] += 1
    progress(Progress("looking", total, total))
    if not corpus.files:
        raise DataError(
            f"no text in here: found {', '.join(f'{n} {what}' for what, n in corpus.skipped.items())}",
            where=", ".join(str(path) for path in paths),
            do="name a file or folder with .txt, .md, .jsonl, .parquet or source code",
        )
    return corpus


def _encoding(file: TextFile, asked: Encoding | None) -> Encoding:
    if file.form == "parquet":
        return Encoding("utf-8", "UTF-8 (parquet)")
    with open_bytes(file) as content:
        return confirm(content, asked, file.path) if asked else guess(content, file.path)


def _ready_tokenizer(tokenizer: str | Path, options: PrepareOptions) -> Tokenizer | None:
    """The tokenizer of a folder or file; None when `tokenizer` names a kind, still to be trained."""
    if tokenizer in KINDS:
        return None
    if options.vocab_size is not None:
        raise DataError(
            f"a trained tokenizer has its vocabulary: it can't be made {options.vocab_size} tokens",
            where=tokenizer,
            do="leave --vocab-size out",
        )
    if not Path(tokenizer).exists():
        raise DataError(
            f"no tokenizer {str(tokenizer)!r}: expected {', '.join(KINDS)}, or the folder of a trained one",
            where="--tokenizer",
        )
    return load_tokenizer(tokenizer)


def _survey(corpus: Corpus, progress: Report) -> Survey:
    options, total = corpus.options, corpus.size()
    survey = Survey(share=options.validation, seed=options.seed, unique=options.clean)
    for _ in survey.look(corpus.pieces(corpus.changes)):
        progress(Progress("reading", survey.size, total and max(total, survey.size)))
    survey.drop_repeated()
    return survey


def _training_text(corpus: Corpus, plan: Plan, progress: Report) -> Iterator[str]:
    done = 0
    for split, text, _ in plan.route(corpus.pieces()):
        done += len(text)
        progress(Progress("sampling", done, plan.characters))
        if split == "train" and text:
            yield text
    progress(Progress("training the tokenizer", 0, None))


def _dtype(tokenizer: Tokenizer) -> Literal["uint16", "uint32"]:
    return "uint16" if tokenizer.vocabulary <= 1 << 16 else "uint32"


class Encoder:
    """Tokenises the pieces of one split and writes them, many at a time."""

    def __init__(self, shards: ShardWriter, tokenizer: Tokenizer, end: int | None):
        """`end` is the token after each document, if any."""
        self.shards, self._tokenizer, self._end = shards, tokenizer, end
        self._pending: list[Piece] = []
        self._characters, self._fresh = 0, True
        self.characters = self.bytes = 0

    def add(self, piece: Piece) -> None:
        self._pending.append(piece)
        self._characters += len(piece.text)
        self.characters += len(piece.text)
        self.bytes += len(piece.text.encode())
        if self._characters >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        encoded = self._tokenizer.encode_batch([piece.text for piece in self._pending])
        tokens: list[int] = []
        starts: list[int] = []
        for piece, ids in zip(self._pending, encoded, strict=True):
            if self._fresh:
                starts.append(len(tokens))
            tokens += ids
            if piece.ends and self._end is not None:
                tokens.append(self._end)
            self._fresh = piece.ends
        self.shards.begin_documents(np.array(starts, np.int64))
        self.shards.write(np.array(tokens, np.int64))
        self._pending, self._characters = [], 0

    def close(self) -> SplitMeta:
        self.flush()
        starts, shards = self.shards.close()
        return SplitMeta(
            tokens=self.shards.tokens,
            documents=self.shards.documents,
            bytes=self.bytes,
            characters=self.characters,
            starts=starts,
            shards=shards,
        )


def _write(corpus: Corpus, plan: Plan, tokenizer: Tokenizer, folder: Path, progress: Report) -> dict[Split, SplitMeta]:
    end, dtype = None if plan.stream else tokenizer.eos, _dtype(tokenizer)
    shards = [ShardWriter(folder, split, dtype, corpus.options.shard_tokens) for split in SPLITS]
    encoders: dict[Split, Encoder] = {writer.split: Encoder(writer, tokenizer, end) for writer in shards}
    try:
        done = 0
        for split, text, ends in plan.route(corpus.pieces()):
            encoders[split].add(Piece(text, ends))
            done += len(text)
            progress(Progress("writing tokens", done, plan.characters))
        return {writer.split: encoders[writer.split].close() for writer in shards}
    finally:
        for writer in shards:
            writer.abandon()


def _report(
    corpus: Corpus, survey: Survey, plan: Plan, tokenizer: Tokenizer, splits: dict[Split, SplitMeta]
) -> PrepareReport:
    cleaning = CleaningReport(**asdict(corpus.changes), repeated=survey.repeated)
    return PrepareReport(
        files=len(corpus.files),
        skipped=dict(corpus.skipped),
        skipped_examples=corpus.examples,
        encodings=dict(corpus.encodings),
        empty_documents=survey.empty,
        cleaning=cleaning if corpus.options.clean else None,
        split=plan.rule,
        tokenizer=tokenizer.kind,
        vocabulary=tokenizer.vocabulary,
        documents={split: meta.documents for split, meta in splits.items()},
        characters={split: meta.characters for split, meta in splits.items()},
        bytes={split: meta.bytes for split, meta in splits.items()},
        tokens={split: meta.tokens for split, meta in splits.items()},
    )
