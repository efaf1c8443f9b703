"""What a model folder says about its tokens: which tokenizer it has, and at which tokens it stops."""

import json
from pathlib import Path

import gguf
import pytest
from small_models import random_model
from test_gguf import BASE, a_model, write_file

from data_sets import data_set
from glassformer.checkpoint import load_model, load_tokenizer, save_model, stop_ids
from glassformer.checkpoint.export import export_folder
from glassformer.checkpoint.families import FAMILIES
from glassformer.errors import CheckpointError, TokenizerError
from glassformer.tokenizer import Tokenizer, train_tokenizer

TOKENIZER = train_tokenizer("bpe", ["a text, 今天天气真好"], 261, special=["<|im_end|>", "<|eom|>"])
EOS, TURN, CALL = (TOKENIZER.special[name] for name in ("<|endoftext|>", "<|im_end|>", "<|eom|>"))


def test_stop_ids_are_the_union_of_all_that_name_one():
    assert stop_ids(TOKENIZER) == {EOS}
    assert stop_ids(TOKENIZER, [{"eos_token_id": 5}, {"eos_token_id": [6, 7]}, {"eos_token_id": None}, {}]) == {
        EOS,
        5,
        6,
        7,
    }
    facts = {f"tokenizer.ggml.{name}_token_id": index for index, name in enumerate(("eos", "eot", "eom", "bos"))}
    assert stop_ids(None, [], facts) == {0, 1, 2}
    with pytest.raises(CheckpointError, match="expected eos_token_id to be one id or several, got 'x'"):
        stop_ids(None, [{"eos_token_id": "x"}])


def exported(path: Path) -> Path:
    model = random_model(FAMILIES["llama"].spec(BASE | {"vocab_size": TOKENIZER.vocabulary}))
    export_folder(model, TOKENIZER, path, "llama")
    return path


def test_a_folder_of_hugging_face_stops_at_what_its_three_files_name(tmp_path: Path):
    folder = exported(tmp_path / "model")
    assert load_model(folder).stops == {EOS}
    for name, ids in (("config.json", TURN), ("generation_config.json", [TURN, CALL])):
        tree = json.loads((folder / name).read_text()) | {"eos_token_id": ids}
        (folder / name).write_text(json.dumps(tree))
    assert load_model(folder).stops == {EOS, TURN, CALL}
    (folder / "generation_config.json").write_text('{"eos_token_id": -1}')
    with pytest.raises(CheckpointError, match=r"model: expected eos_token_id to be one id"):
        load_model(folder)


def test_a_gguf_file_stops_at_its_end_of_text_and_of_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def with_turn(writer: gguf.GGUFWriter, value: float) -> None:
        gguf.GGUFWriter.add_uint32(writer, "tokenizer.ggml.eos_token_id", 3)
        gguf.GGUFWriter.add_uint32(writer, "tokenizer.ggml.eot_token_id", 4)
        gguf.GGUFWriter.add_float32(writer, "llama.rope.freq_base", value)

    config, model = a_model("llama")
    monkeypatch.setattr(gguf.GGUFWriter, "add_rope_freq_base", with_turn)
    write_file(tmp_path / "m.gguf", "llama", config, model)
    assert load_model(tmp_path / "m.gguf").stops == {3, 4}


def test_a_model_of_ours_stops_at_the_end_of_its_tokenizer(tmp_path: Path):
    model = random_model(FAMILIES["llama"].spec(BASE | {"vocab_size": TOKENIZER.vocabulary}))
    save_model(tmp_path, model, TOKENIZER)
    assert load_model(tmp_path).stops == {EOS}
    assert load_tokenizer(tmp_path).fingerprint == TOKENIZER.fingerprint


@pytest.mark.real
def test_a_folder_without_tokenizer_json_has_the_tokenizer_of_its_vocabulary(tmp_path: Path):
    source = data_set("tokenizer-gpt2")
    model = random_model(FAMILIES["llama"].spec(BASE | {"vocab_size": 50257}))
    export_folder(model, None, tmp_path / "model", "llama")
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / "model" / name).write_bytes((source / name).read_bytes())
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded.tokenizer, Tokenizer)
    assert loaded.tokenizer.encode("Hello world") == [15496, 995]
    assert loaded.stops == {50256}


def test_a_file_without_a_tokenizer_says_so(tmp_path: Path):
    config, model = a_model("llama")
    write_file(tmp_path / "m.gguf", "llama", config, model)
    with pytest.raises(TokenizerError, match="this file holds no tokenizer"):
        load_tokenizer(tmp_path / "m.gguf")
