"""Models as folders: `save_model` and `load_model`.

A model folder holds `model.safetensors`, `spec.json` and, where the model has one, the tokenizer's files.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from glassformer.checkpoint.document import read_document
from glassformer.checkpoint.ends import generation_config, never_ids, stop_ids, unheeded
from glassformer.checkpoint.families import FAMILIES
from glassformer.checkpoint.families.base import Family
from glassformer.checkpoint.gguf import GgufFile, Packed
from glassformer.checkpoint.gguf_model import gguf_model
from glassformer.checkpoint.heap import give_back
from glassformer.checkpoint.llama2c import Llama2cFile
from glassformer.checkpoint.locate import PICKLES, Place, Which, locate, pickled
from glassformer.checkpoint.rename import RawSource, Source, alike, check, imported, same
from glassformer.checkpoint.tensors import Entry, TensorFile, save_tensors
from glassformer.errors import CheckpointError, SpecError
from glassformer.model.transformer import Transformer, TransformerSpec
from glassformer.model.unfilled import Unfilled
from glassformer.spec import check as check_spec
from glassformer.tokenizer import Tokenizer, read_tokenizer

WEIGHTS, SPEC, INDEX = "model.safetensors", "spec.json", "model.safetensors.index.json"


@dataclass(frozen=True)
class Loaded:
    """A model from disk, in evaluation mode.

    `folder` is where its weights were, `name` what to call it, `stops` are the ids at which it stops writing, `never`
    those that it isn't to write; `unheeded` is what its generation_config.json asks beside that and we don't do.
    """

    model: Transformer
    tokenizer: Tokenizer | None
    spec: TransformerSpec
    name: str
    folder: Path
    stops: frozenset[int] = frozenset()
    never: frozenset[int] = frozenset()
    unheeded: tuple[str, ...] = ()


def save_model(
    folder: Path, model: Transformer, tokenizer: Tokenizer | None = None, extra: Mapping[str, Any] | None = None
) -> None:
    """Write a model folder; what is `extra` becomes text in the header of model.safetensors.

    It is atomic inside `write_folder(target, lambda folder: save_model(folder, …))`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / WEIGHTS, model.state_dict(), {name: str(value) for name, value in (extra or {}).items()})
    (folder / SPEC).write_text(model.spec.to_json(), encoding="utf-8")
    if tokenizer is not None:
        tokenizer.save(folder)


def load_model(
    path: Path | str,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    which: Which = "best",
) -> Loaded:
    """The model of a checkpoint, of a run (its best checkpoint, else its last), a Hugging Face folder or a single file.

    Weights of the format `dtype` are mapped: they take memory when they are used. Others are converted one tensor at a
    time, so loading needs little more memory than the model.

    Raises:
        CheckpointError: nothing to load at `path`, a damaged file, or tensors that are not those of the spec.
    """
    place = locate(Path(path), which)
    with ExitStack() as stack:
        inside = _inside(place, stack)
        family = _family(place, inside)
        spec = _spec(place, family, inside)  # a config that can't be used is said before its weights are looked for
        source = inside or stack.enter_context(_weights(place, family))
        spec = _spec(place, family, inside, source) if family else spec
        tokenizer = read_tokenizer(place.tokenizer) if place.tokenizer else None
        tokenizer = inside.take_tokenizer() if inside else tokenizer
        _refuse_another(tokenizer, spec, place)
        give_back()
        _refuse_sizes(spec, source, place.folder)
        model = _unfilled(spec, place.folder)
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        rules = [same(name, name) for name in shapes] if family is None else family.rules(spec)
        try:
            check(rules, shapes, source, family.unused if family else (), place.folder)
        except CheckpointError as error:
            raise CheckpointError(error.what, where=error.where, do=_other(place, family, spec) or error.do) from None
        _fill(model, imported(rules, source, dtype), device)
    configs = [] if inside else [place.config or {}, generation_config(place.folder)]
    try:
        stops, never = stop_ids(tokenizer, configs, inside.facts if inside else None), never_ids(configs)
    except CheckpointError as error:
        raise CheckpointError(error.what, where=error.where or place.folder) from None
    loaded = model.to(device).eval()
    return Loaded(loaded, tokenizer, spec, place.name, place.folder, stops, never, unheeded(configs))


class SingleFile(Source, Protocol):
    """A model in one file: tensors under the names of a family, whose `config` it gives; its tokenizer and facts."""

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def facts(self) -> Mapping[str, Any]: ...

    def take_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, once: what it is made of is then let go."""
        ...


def _inside(place: Place, stack: ExitStack) -> SingleFile | None:
    """The file that a model is, open until the stack closes; None where the model is a folder."""
    if place.format == "folder":
        return None
    if place.format == "gguf":
        return gguf_model(stack.enter_context(GgufFile(place.folder)))
    return stack.enter_context(Llama2cFile(place.folder))


def _other(place: Place, family: Family | None, spec: TransformerSpec) -> str | None:
    """What a folder is by its own config, where that isn't what it was read as."""
    named = (place.config or {}).get("architectures")
    if family is None or not isinstance(named, list) or named[:1] in ([], [family.architecture_of(spec)]):
        return None
    return f"config.json says {str(named[0])[:80]}, and it was read as {family.architecture_of(spec)}"


def _refuse_another(tokenizer: Tokenizer | None, spec: TransformerSpec, place: Place) -> None:
    """Refuse a tokenizer that has tokens the model doesn't know."""
    if tokenizer is not None and tokenizer.vocabulary > spec.vocabulary:
        raise CheckpointError(
            f"the tokenizer has {tokenizer.vocabulary} tokens, the model only {spec.vocabulary}",
            where=place.tokenizer or place.folder,
            do="give the model its own tokenizer",
        )


def load_spec(path: Path | str, which: Which = "best") -> tuple[TransformerSpec, str]:
    """The spec and the name of a model, without reading its weights; errors as `load_model`.

    Weights that lie beside another program's config are opened, for their names and sizes; they may also be missing.
    """
    place = locate(Path(path), which)
    with ExitStack() as stack:
        inside = _inside(place, stack)
        family = _family(place, inside)
        spec = _spec(place, family, inside)
        if family is not None and any((place.folder / name).exists() for name in (WEIGHTS, INDEX)):
            source = stack.enter_context(_weights(place, family))
            spec = _spec(place, family, inside, source)
            _refuse_sizes(spec, source, place.folder)
        return spec, place.name


def _family(place: Place, inside: SingleFile | None) -> Family | None:
    """The family of another program's model; None where it is our own."""
    config = place.config if inside is None else inside.config
    if config is None:
        return None
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise CheckpointError(
            f"model_type {str(kind)[:80]!r} is not known",
            where=place.folder / "config.json" if inside is None else place.folder,
            do=f"known: {', '.join(FAMILIES)}",
        )
    return family


def _spec(
    place: Place, family: Family | None, inside: SingleFile | None, source: Source | None = None
) -> TransformerSpec:
    """The spec of a model; `source` are its tensors, where they are open."""
    if family is None:
        path = place.folder / SPEC
        try:
            return check_spec(TransformerSpec, read_document(path), where=path)
        except SpecError as error:
            raise CheckpointError(f"not the spec of a model: {error.what}", where=path) from None
    config = place.config if inside is None else inside.config
    path = place.folder / "config.json" if inside is None else place.folder
    assert config is not None, "a family comes from a config"
    try:
        config = family.settle(config, source.entries) if source else config
        spec = family.spec(config)
        if isinstance(source, TensorFile | _Renamed) and _own_head(family, spec, source):
            spec = family.spec({**config, "tie_word_embeddings": False})
        return spec
    except CheckpointError as error:
        raise CheckpointError(error.what, where=path, do=error.do) from None


def _own_head(family: Family, spec: TransformerSpec, source: RawSource) -> bool:
    """Whether a head that the config ties to the token vectors has other numbers in the file: then those are meant."""
    if spec.head.kind != "tied":
        return False
    vectors = next(rule.theirs[0] for rule in family.rules(spec) if rule.ours[:1] == ("embedding.weight",))
    own = [name for name in source.entries if re.fullmatch(family.tied, name) and name != vectors]
    return vectors in source.entries and any(not alike(source, name, vectors) for name in own)


@contextmanager
def _weights(place: Place, family: Family | None) -> Iterator[RawSource]:
    """The tensors of a folder, from one file or from the shards that an index lists."""
    with ExitStack() as stack:
        if (place.folder / WEIGHTS).exists():
            source: RawSource = stack.enter_context(TensorFile(place.folder / WEIGHTS, maps=True))
        elif (place.folder / INDEX).exists():
            source = _sharded(place.folder, stack)
        else:
            for file in sorted(place.folder.iterdir()):
                if file.suffix in PICKLES:
                    raise pickled(file)
            raise CheckpointError(f"no weights here: expected {WEIGHTS} or {INDEX}", where=place.folder)
        yield source if family is None else _named_as_now(source, family)


def _named_as_now(source: RawSource, family: Family) -> RawSource:
    """The tensors under the names of a whole model: files of the bare one leave out the prefix, old ones differ."""
    names = {name: name for name in source.entries}
    if not any(name.startswith(family.prefix) for name in names):
        names = {f"{family.prefix}{name}": name for name in names}
    for old, new in family.old.items():
        names = {name.removesuffix(old) + new if name.endswith(old) else name: there for name, there in names.items()}
    if all(name == there for name, there in names.items()):
        return source
    return _Renamed({name: (source, there) for name, there in names.items()})


class _Renamed:
    """Tensors of several files, or under other names: `parts` says where each lies and what it is called there."""

    def __init__(self, parts: Mapping[str, tuple[RawSource, str]]):
        self.parts = parts
        self.entries: Mapping[str, Entry | Packed] = {
            name: file.entries[there] for name, (file, there) in parts.items()
        }

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        file, there = self.parts[name]
        return file.tensor(there, dtype)

    def pieces(self, name: str) -> Iterator[bytes]:
        file, there = self.parts[name]
        return file.pieces(there)


def _sharded(folder: Path, stack: ExitStack) -> RawSource:
    path = folder / INDEX
    names = read_document(path).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(shard, str) for shard in names.values()):
        raise CheckpointError("expected weight_map to map tensors to files", where=path)
    files: dict[str, TensorFile] = {}
    for shard in sorted(set(names.values())):
        if not shard.endswith(".safetensors") or Path(shard).name != shard:
            raise CheckpointError(f"expected the name of a .safetensors file, found {shard[:80]!r}", where=path)
        files[shard] = stack.enter_context(TensorFile(folder / shard, maps=True))
    held = {name: shard for shard, file in files.items() for name in file.entries}
    if held != names or sum(len(file.entries) for file in files.values()) != len(held):
        odd = sorted(name for name in held.keys() | names.keys() if held.get(name) != names.get(name))
        what = f"the index and the files disagree about {', '.join(odd[:4]) or 'a tensor that occurs twice'}"
        raise CheckpointError(what, where=path, do="copy or download the folder again")
    return _Renamed({name: (files[shard], name) for name, shard in names.items()})


def _refuse_sizes(spec: TransformerSpec, source: Source, where: Path) -> None:
    """Refuse a spec that is larger than its file could be, before a model of that size is built."""
    elements = max((_elements(entry) for entry in source.entries.values()), default=0)
    sizes = [spec.width, spec.vocabulary]
    for stack in (spec, spec.encoder) if spec.encoder else (spec,):
        sizes.append(stack.position.limit or 1)
        for block in stack.blocks:
            sizes += block.sizes(spec.width).values()
    if spec.layers + (spec.encoder.layers if spec.encoder else 0) > len(source.entries) or max(sizes) > elements:
        what = f"checkpoint of another spec: {spec.layers} layers and sizes up to {max(sizes)} don't fit into "
        raise CheckpointError(f"{what}{len(source.entries)} tensors of at most {elements} numbers", where=where)


def _elements(entry: Entry | Packed) -> int:
    return (entry.stop - entry.start) // entry.dtype.itemsize


def _unfilled(spec: TransformerSpec, where: Path) -> Transformer:
    """The model of a spec, with weights that take no memory yet."""
    try:
        with Unfilled():
            return spec.build()
    except (RuntimeError, OverflowError, TypeError) as error:  # a TypeError: a size that is no 64-bit number
        raise CheckpointError(
            f"no model can have these sizes: {' '.join(str(error).split())[:120]}", where=where
        ) from None


def _fill(model: Transformer, tensors: Iterable[tuple[str, Tensor]], device: str | torch.device) -> None:
    ready = {name: tensor.to(device).contiguous() for name, tensor in tensors}
    model.load_state_dict(ready, assign=True)
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())), "a tensor was never filled"
