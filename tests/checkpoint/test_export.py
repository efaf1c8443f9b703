"""Exported folders, as a program that only knows transformers finds them."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from small_models import logits_of, random_model, small_gpt2, small_llama, tokens_for

from decoders import build, decoder_spec, mixed_spec
from glassformer.checkpoint import load_tensors, save_tensors
from glassformer.checkpoint.export import export_folder
from glassformer.checkpoint.families import FAMILIES
from glassformer.errors import CheckpointError
from glassformer.model.position import NoPositionSpec
from glassformer.tokenizer import Tokenizer, train_tokenizer

TEXT = "the cat sat on the mat.\n  今天天气真好 👩‍🚀"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer("bpe", [TEXT] * 3, 280)


STRANGER = """
import json, sys
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

assert not any(name.startswith("glassformer") for name in sys.modules)
tokens, text = load_file(sys.argv[1])["tokens"], sys.argv[2]
logits, ids = {}, {}
for folder in sys.argv[3:]:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    logits[folder] = model(tokens).logits.detach()
    ids[folder] = tokenizer(text, split_special_tokens=True)["input_ids"]
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.eos_token == "<|endoftext|>"
    assert model.get_input_embeddings().padding_idx is None  # or fine-tuning would never move the end of a text
save_file(logits, sys.argv[1])
print(json.dumps(ids))
"""


@pytest.mark.slow
def test_a_program_without_glassformer_loads_model_and_tokenizer_to_the_same_numbers(tmp_path, tokenizer):
    size = tokenizer.vocabulary + 3  # a model may have more rows than there are tokens
    specs = {"gpt2": small_gpt2(vocabulary=size), "gpt2-bare": small_gpt2(vocabulary=size, bias=False)}
    specs |= {"llama": small_llama(vocabulary=size), "llama-tied": small_llama(vocabulary=size, tied=True)}
    models = {str(tmp_path / name): random_model(spec) for name, spec in specs.items()}
    for folder, model in models.items():
        export_folder(model, tokenizer, tmp_path / folder)
    tokens = tokens_for(specs["gpt2"])
    save_tensors(tmp_path / "exchange", {"tokens": tokens})
    command = [sys.executable, "-c", STRANGER, str(tmp_path / "exchange"), TEXT, *models]
    answer = subprocess.check_output(command, env={**os.environ, "PYTHONPATH": "", "TRANSFORMERS_VERBOSITY": "error"})
    logits = load_tensors(tmp_path / "exchange")
    for folder, model in models.items():
        torch.testing.assert_close(logits[folder], logits_of(model, tokens), atol=1e-5, rtol=0)
        assert json.loads(answer)[folder] == tokenizer.encode(TEXT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_an_export_is_in_the_number_format_of_the_model_and_says_so(tmp_path, dtype):
    model = random_model(small_gpt2(bias=False)).to(dtype)
    export_folder(model, None, tmp_path / "out")
    assert {tensor.dtype for tensor in load_tensors(tmp_path / "out" / "model.safetensors").values()} == {dtype}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == str(dtype).removeprefix("torch.")
    assert config["architectures"] == ["GPT2LMHeadModel"]
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_an_export_replaces_an_export_and_nothing_else(tmp_path):
    model = small_gpt2().build()
    for _ in range(2):
        export_folder(model, None, tmp_path / "out")
    (tmp_path / "out" / "thesis.doc").write_text("three years of work")
    with pytest.raises(CheckpointError, match=r"the folder holds other files \(thesis\.doc\)"):
        export_folder(model, None, tmp_path / "out")
    assert (tmp_path / "out" / "thesis.doc").exists()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", [decoder_spec(NoPositionSpec(), "linear"), mixed_spec()], ids=["all linear", "mixed"])
def test_linear_attention_is_refused_by_every_family_that_does_not_have_it(family, spec, tmp_path):
    with pytest.raises(CheckpointError, match="this model is no "):
        export_folder(build(spec), None, tmp_path / "there", family)
    assert not (tmp_path / "there").exists()


def test_weights_that_a_number_format_can_not_hold_are_refused(tmp_path):
    model = small_gpt2().build()
    with torch.no_grad():
        model.embedding.weight[3, 4] = 70_000.0
    with pytest.raises(CheckpointError, match=r"transformer\.wte\.weight holds values that are not finite in float16"):
        export_folder(model.half(), None, tmp_path / "out")
    assert not (tmp_path / "out").exists()
