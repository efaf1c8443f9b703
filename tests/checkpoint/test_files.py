"""Model folders: saved, found, loaded; and every wrong or damaged one refused in one line."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import logits_of, random_model, small_gpt2, small_llama, tokens_for

from glassformer.checkpoint import load_model, load_spec, load_tensors, save_model, write_folder
from glassformer.checkpoint.export import export_folder
from glassformer.checkpoint.locate import SHAPES
from glassformer.engine import Engine, SamplingParams
from glassformer.errors import CheckpointError, GlassformerError
from glassformer.tokenizer import Tokenizer, train_tokenizer

TEXTS = ["the cat sat on the mat", "今天天气真好"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer("char", TEXTS)


@pytest.fixture
def run(tmp_path, tokenizer) -> Path:
    """A run folder with checkpoints of three steps, the one at 200 being the best."""
    folder = tmp_path / "run"
    for step in (100, 200, 300):
        model = random_model(small_llama(vocabulary=400), seed=step)
        write_folder(folder / "checkpoints" / f"step-{step:08}", lambda target, model=model: save_model(target, model))
    tokenizer.save(folder)
    (folder / "run.json").write_text("{}")
    (folder / "best.json").write_text('{"step": 200, "loss": 1.5}')
    return folder


@pytest.mark.parametrize("spec", [small_gpt2(), small_llama(), small_llama(tied=True)], ids=["gpt2", "llama", "tied"])
def test_a_model_comes_back_as_it_was(tmp_path, spec):
    model, tokens = random_model(spec), tokens_for(spec)
    save_model(tmp_path / "m", model, None, {"step": 3})
    before = torch.get_rng_state()
    loaded = load_model(tmp_path / "m")
    assert torch.equal(before, torch.get_rng_state()), "loading drew random numbers"
    assert loaded.spec == spec
    assert (loaded.name, loaded.folder, loaded.tokenizer) == ("m", tmp_path / "m", None)
    assert not loaded.model.training
    assert all(parameter.requires_grad for parameter in loaded.model.parameters())
    assert torch.equal(logits_of(loaded.model, tokens), logits_of(model, tokens))


def test_tied_weights_are_stored_once(tmp_path):
    for tied, matrices in ((True, 1), (False, 2)):
        save_model(tmp_path / str(tied), small_llama(tied=tied).build())
        stored = load_tensors(tmp_path / str(tied) / "model.safetensors")
        assert sum(97 in tensor.shape for tensor in stored.values()) == matrices


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_are_converted_when_they_are_loaded(tmp_path, dtype):
    model = random_model(small_llama())
    save_model(tmp_path, model)
    loaded = load_model(tmp_path, dtype=dtype).model
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name].to(dtype))
    assert loaded.blocks[0].attention.position.frequency.dtype == torch.float32  # angles are never blurred


def test_a_tokenizer_travels_with_its_model(tmp_path, tokenizer):
    save_model(tmp_path, small_llama(vocabulary=400).build(), tokenizer)
    loaded = load_model(tmp_path).tokenizer
    assert loaded is not None
    assert loaded.encode(TEXTS[1]) == tokenizer.encode(TEXTS[1])


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path, tokenizer):
    save_model(tmp_path, small_llama(vocabulary=9).build(), tokenizer)
    with pytest.raises(CheckpointError, match=rf"the tokenizer has {tokenizer.vocabulary} tokens, the model only 9"):
        load_model(tmp_path)


def test_an_unreadable_tokenizer_is_an_error_of_one_line(tmp_path):
    save_model(tmp_path, small_llama().build())
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(GlassformerError) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_run_gives_its_best_checkpoint_or_its_last(run):
    weights = {
        step: random_model(small_llama(vocabulary=400), seed=step).state_dict()["embedding.weight"]
        for step in (200, 300)
    }
    best, last = load_model(run), load_model(run, which="last")
    assert (best.name, best.folder) == ("run", run / "checkpoints" / "step-00000200")
    assert best.tokenizer is not None
    assert torch.equal(best.model.embedding.weight, weights[200])
    assert torch.equal(last.model.embedding.weight, weights[300])
    (run / "best.json").unlink()
    assert torch.equal(load_model(run).model.embedding.weight, weights[300])


def test_a_checkpoint_of_a_run_is_loaded_with_the_run_s_tokenizer(run):
    loaded = load_model(run / "checkpoints" / "step-00000100")
    assert loaded.tokenizer is not None
    assert loaded.name == "step-00000100"


def test_folders_that_are_not_whole_checkpoints_are_passed_over(run):
    (run / "checkpoints" / "step-00000400").mkdir()
    (run / "checkpoints" / ".step-00000500.01234567.partial").mkdir()
    (run / "checkpoints" / "notes").mkdir()
    assert load_model(run, which="last").folder.name == "step-00000300"


def test_a_best_checkpoint_that_is_gone_is_said(run):
    (run / "best.json").write_text('{"step": 7}')
    with pytest.raises(CheckpointError, match=r"best.json names step 7, which is gone \(there are 100, 200, 300\)"):
        load_model(run)
    (run / "best.json").write_text('{"step": "7"}')
    with pytest.raises(CheckpointError, match="expected a number at step"):
        load_model(run)
    assert load_model(run, which="last").folder.name == "step-00000300"


def test_a_wrong_path_says_what_such_a_folder_must_contain(tmp_path):
    def refusal(path: Path) -> str:
        with pytest.raises(CheckpointError) as caught:
            load_model(path)
        return str(caught.value)

    assert refusal(tmp_path / "none") == f"{tmp_path / 'none'}: no such folder ({SHAPES})"
    assert "can't read: File name too long" in refusal(tmp_path / ("x" * 300))
    assert refusal(tmp_path) == f"{tmp_path}: no model in this folder ({SHAPES})"
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert "this run has no checkpoint yet" in refusal(tmp_path / "run")
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "run.json").write_text("{}")
    assert "this run has no checkpoint yet" in refusal(tmp_path / "early")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "spec.json").write_text("{}")
    assert "model.safetensors is missing" in refusal(tmp_path / "half")
    (tmp_path / "x.safetensors").write_bytes(b"")
    assert "give the folder it lies in" in refusal(tmp_path / "x.safetensors")
    (tmp_path / "x.txt").write_bytes(b"")
    assert "expected a folder, got a file" in refusal(tmp_path / "x.txt")


def test_pickled_weights_are_never_opened(tmp_path):
    config = {"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 8}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"no weights here: expected model\.safetensors or"):
        load_model(tmp_path)
    os.mkfifo(tmp_path / "pytorch_model.bin")  # whoever opens it waits for ever
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(CheckpointError, match=r"pickled weights are never loaded.*safetensors"):
            load_model(path)


def test_a_family_that_is_not_known_is_named(tmp_path):
    for config, message in (
        ({"model_type": "mamba"}, "'mamba' is not known"),
        ({"model_type": [1]}, "is not known"),
        ({}, "None"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=rf"{message}.*known: gpt2, llama"):
            load_model(tmp_path)


def test_a_checkpoint_of_another_spec_is_refused_with_names_and_shapes(tmp_path):
    save_model(tmp_path, small_gpt2().build())
    (tmp_path / "spec.json").write_text(small_gpt2(bias=False, context=12).to_json())
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: checkpoint of another spec: 17 tensors unexpected: blocks.0.attention.k.bias, "
        "blocks.0.attention.out.bias, blocks.0.attention.q.bias, blocks.0.attention.v.bias and 13 more; "
        "1 tensor of another shape: position.table (expected [12, 32], found [24, 32]) "
        "(give the weights and the config of the same model)"
    )


HUGE = 10**12
OVERSIZED = {
    "layers": {"layers": HUGE},
    "as many layers as numbers": {"layers": 3000},
    "vocabulary": {"vocabulary": HUGE},
    "positions": {"position": {"kind": "learned", "length": HUGE}},
    "more positions than numbers": {"position": {"kind": "learned", "length": 10**30}},
    "latents": {
        "blocks": [
            {
                "attention": {
                    "kind": "latent",
                    "heads": 1,
                    "rank": 1,
                    "query_rank": HUGE,
                    "head_width": 1,
                    "turned": 2,
                    "value_width": 1,
                },
                "feedforward": {"kind": "mlp", "hidden": 8},
            }
        ]
    },
    "hidden": {"blocks": [{"attention": {"heads": 1, "kv_heads": 1}, "feedforward": {"kind": "mlp", "hidden": HUGE}}]},
    "alibi of as many heads": {
        "blocks": [
            {
                "attention": {"heads": HUGE, "kv_heads": 1, "head_width": 1, "position": {"kind": "alibi"}},
                "feedforward": {"kind": "mlp", "hidden": 8},
            }
        ]
    },
    "rotary of as wide heads": {
        "blocks": [
            {
                "attention": {"heads": 1, "kv_heads": 1, "head_width": HUGE, "position": {"kind": "rotary"}},
                "feedforward": {"kind": "mlp", "hidden": 8},
            }
        ]
    },
}


@pytest.mark.parametrize("changes", OVERSIZED.values(), ids=OVERSIZED)
def test_a_spec_that_claims_a_huge_model_is_refused_before_anything_is_built(tmp_path, changes):
    save_model(tmp_path, small_gpt2().build())
    tree = {**json.loads(small_gpt2().to_json()), **changes}
    (tmp_path / "spec.json").write_text(json.dumps(tree))
    with pytest.raises(CheckpointError, match="checkpoint of another spec"):
        load_model(tmp_path)


def mutate(tree: object, chance: random.Random) -> object:
    """One random place of a tree changed into something else."""
    if isinstance(tree, dict) and tree and chance.random() < 0.85:
        name = chance.choice(list(tree))
        if chance.random() < 0.1:
            return {key: value for key, value in tree.items() if key != name}
        return {**tree, name: mutate(tree[name], chance)}
    if isinstance(tree, list) and tree and chance.random() < 0.85:
        return [mutate(tree[0], chance), *tree[1:]]
    return chance.choice(
        [None, True, -1, 0, 1, 2, 3, 2.5, 1e308, 10**30, 2**63, "x", "rms", [], [1], {}, {"kind": "rms"}, tree]
    )


LLAMA = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 16,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
GPT2 = {
    "vocab_size": 11,
    "n_positions": 16,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "attn_pdrop": 0.1,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
}
DOCUMENTS = {
    "spec.json": json.loads(small_gpt2().to_json()),
    "llama": {"model_type": "llama", **LLAMA},
    "gpt2": {"model_type": "gpt2", **GPT2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fuzzed")
    save_model(folder, small_gpt2().build())
    return folder


@pytest.mark.parametrize("document", DOCUMENTS)
@settings(max_examples=250, deadline=3000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(min_value=0))
def test_a_garbled_document_is_refused_or_means_a_model(folder, document, seed):
    chance, tree = random.Random(seed), DOCUMENTS[document]
    for _ in range(chance.randint(1, 3)):
        tree = mutate(tree, chance)
    text = json.dumps(tree)
    if chance.random() < 0.2:
        text = text[: chance.randrange(len(text) + 1)]
    (folder / "spec.json").unlink(missing_ok=True)
    (folder / ("spec.json" if document == "spec.json" else "config.json")).write_text(text)
    refusal = ""
    try:
        assert load_model(folder).model.embedding.weight.shape == (97, 32)
    except CheckpointError as error:
        refusal = str(error)
    assert refusal or document == "spec.json"
    assert "\n" not in refusal
    assert len(refusal) < 1500


@pytest.mark.parametrize(
    "text", ["[" * 500_000, '{"a":' * 200_000, "", "null", "\x00", '{"width": 1, "width": 2}', "NaN", "9" * 9999]
)
def test_a_document_that_is_no_object_is_refused(tmp_path, text):
    save_model(tmp_path, small_gpt2().build())
    (tmp_path / "spec.json").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_spec_is_read_without_its_weights(run):
    (run / "checkpoints" / "step-00000200" / "model.safetensors").write_bytes(b"cut")
    assert load_spec(run) == (small_llama(vocabulary=400), "run")
    with pytest.raises(CheckpointError, match="damaged safetensors file: expected at least 8 bytes, found 3"):
        load_model(run)


MEASURE = """
import sys, torch
from glassformer.checkpoint import load_model

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024

load_model(sys.argv[1])
before = peak()
loaded = load_model(sys.argv[2])
print(peak() - before, sum(p.nbytes for p in loaded.model.parameters()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_little_more_memory_than_the_weights(tmp_path):
    save_model(tmp_path / "small", small_llama().build())
    save_model(tmp_path / "large", small_llama(width=512, layers=12, vocabulary=1000).build())
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "small"), str(tmp_path / "large")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    taken, weights = map(int, subprocess.check_output(command, env=environment).split())
    assert weights > 100 * 2**20
    assert taken < 1.2 * weights


def test_what_a_model_is_never_to_write_is_read_and_never_written(tmp_path, tokenizer):
    model = random_model(small_llama(vocabulary=tokenizer.vocabulary))
    export_folder(model, tokenizer, tmp_path / "m")
    free = load_model(tmp_path / "m")
    params = SamplingParams(max_tokens=20, temperature=0)
    written = Engine(free.model, tokenizer, stops=()).generate([[1, 2, 3]], params)[0].tokens
    assert not free.never
    asked = {
        "suppress_tokens": [written[0]],
        "bad_words_ids": [[written[-1]], [1, 2]],
        "no_repeat_ngram_size": 3,
        "min_length": 0,
    }
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps(asked))
    bound = load_model(tmp_path / "m")
    assert bound.never == {written[0], written[-1]}
    assert bound.unheeded == ("bad_words_ids (of several tokens)", "no_repeat_ngram_size")
    other = Engine(bound.model, tokenizer, stops=(), never=bound.never).generate([[1, 2, 3]], params)[0].tokens
    assert other[0] != written[0]
    assert not set(other) & bound.never
    for odd in ([3], "x", [["a"]], {"a": 1}):
        (tmp_path / "m" / "generation_config.json").write_text(json.dumps({"bad_words_ids": odd}))
        with pytest.raises(CheckpointError, match="bad_words_ids"):
            load_model(tmp_path / "m")


def test_mapped_weights_are_a_copy_of_the_file_as_it_was(tmp_path):
    """Whoever changes them changes no file, and whoever replaces the file changes no model."""
    spec = small_llama()
    write_folder(tmp_path / "m", lambda folder: save_model(folder, random_model(spec)))
    stored = (tmp_path / "m" / "model.safetensors").read_bytes()
    loaded, tokens = load_model(tmp_path / "m").model, tokens_for(spec)
    before = logits_of(loaded, tokens)
    with torch.no_grad():
        loaded.norm.weight.mul_(2.0)
    assert not torch.equal(logits_of(loaded, tokens), before)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == stored
    with torch.no_grad():
        loaded.norm.weight.div_(2.0)
    write_folder(tmp_path / "m", lambda folder: save_model(folder, spec.build()))
    assert torch.equal(logits_of(loaded, tokens), before)
    assert not torch.equal(logits_of(load_model(tmp_path / "m").model, tokens), before)


def test_where_a_file_system_cannot_map_weights_are_read(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object):
        raise OSError(19, "No such device")

    model = random_model(small_llama())
    save_model(tmp_path, model)
    monkeypatch.setattr("glassformer.checkpoint.reading.mmap.mmap", refuse)
    tokens = tokens_for(small_llama())
    assert torch.equal(logits_of(load_model(tmp_path).model, tokens), logits_of(model, tokens))


def test_weights_at_an_odd_place_of_a_file_are_read_all_the_same(tmp_path):
    """Not every program lays numbers where their size divides the place."""
    model = random_model(small_llama())
    save_model(tmp_path, model)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    path.write_bytes((size + 1).to_bytes(8, "little") + content[8 : 8 + size] + b" " + content[8 + size :])
    tokens = tokens_for(small_llama())
    assert torch.equal(logits_of(load_model(tmp_path).model, tokens), logits_of(model, tokens))
