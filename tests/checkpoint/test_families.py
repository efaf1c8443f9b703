"""Families at the edges: models of ours over there, what is refused and how, and files of other shapes."""

import json
import shutil
from pathlib import Path

import pytest
import their_models
import torch
from safetensors.torch import load_file, save_file
from small_models import logits_of, random_model, small_gpt2, small_llama, tokens_for
from their_configs import SMALL, VARIANTS
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForSequenceClassification

from glassformer.checkpoint import load_model
from glassformer.checkpoint.export import export_folder
from glassformer.checkpoint.families import FAMILIES
from glassformer.errors import CheckpointError
from glassformer.model import TransformerSpec
from glassformer.model.norm import LayerNormSpec, RMSNormSpec
from glassformer.spec import check, override

OURS = {
    "gpt2": small_gpt2(),
    "gpt2 without biases": small_gpt2(bias=False),
    "gpt2 untied, odd vocabulary": small_gpt2(vocabulary=1).replace(vocabulary=13, head={"kind": "untied"}),
    "gpt2 of some biases": small_gpt2().replace(norm=LayerNormSpec(bias=False)),
    "gpt2 shorter context than positions": small_gpt2().replace(context=11),
    "llama": small_llama(),
    "llama tied, multi-query": small_llama(tied=True, kv_heads=1, vocabulary=7),
    "llama without gains": small_llama().replace(norm=RMSNormSpec(gain=False)),
    "llama with q, k and v biases": check(
        TransformerSpec, override(small_llama().model_dump(mode="json"), ["blocks.0.attention.bias=true"])
    ),
    "llama with squared ReLU and wide heads": check(
        TransformerSpec,
        override(
            small_llama().model_dump(mode="json"),
            ["blocks.0.feedforward.activation=relu_squared", "blocks.0.attention.head_width=10"],
        ),
    ),
}


@pytest.mark.parametrize("spec", OURS.values(), ids=OURS)
def test_our_model_gives_the_same_logits_there(tmp_path, spec):
    model, tokens = random_model(spec), tokens_for(spec)
    family = export_folder(model, None, tmp_path / "out")
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values()), report
    assert family.architecture == type(theirs).__name__
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, logits_of(model, tokens), atol=1e-5, rtol=0)


@pytest.mark.parametrize("spec", OURS.values(), ids=OURS)
def test_an_export_loads_here_again_to_the_same_logits(tmp_path, spec):
    model, tokens = random_model(spec), tokens_for(spec)
    export_folder(model, None, tmp_path / "out")
    loaded = load_model(tmp_path / "out")
    torch.testing.assert_close(logits_of(loaded.model, tokens), logits_of(model, tokens), atol=1e-6, rtol=0)


REFUSED = {
    "blocks.0.attention.qk_norm = rms: LlamaForCausalLM has None": ["blocks.0.attention.qk_norm.kind=rms"],
    "blocks.0.attention.mask.kind = window: LlamaForCausalLM has causal": [
        "blocks.0.attention.mask.kind=window",
        "blocks.0.attention.mask.size=4",
    ],
    "blocks.0.attention.mask.kind = bidirectional: LlamaForCausalLM has causal": [
        "blocks.0.attention.mask.kind=bidirectional"
    ],
    "blocks.0.attention.scale = 0.5: LlamaForCausalLM has 0.35": ["blocks.0.attention.scale=0.5"],
    "blocks.0.attention.position.kind = alibi: LlamaForCausalLM has rotary": ["blocks.0.attention.position.kind=alibi"],
    "blocks.1.attention.position.fraction = 0.5: LlamaForCausalLM has 1.0": [
        "blocks.0.attention.position.fraction=0.5"
    ],
    "blocks.0.wiring.kind = post: LlamaForCausalLM has pre": ["blocks.0.wiring.kind=post"],
    "blocks.0.norm.kind = layer: LlamaForCausalLM has rms": ["blocks.0.norm.kind=layer"],
    "head.softcap = 30.0: LlamaForCausalLM has None": ["head.softcap=30"],
    "embedding.scale = 2.0: LlamaForCausalLM has 1.0": ["embedding.scale=2"],
    "embedding.norm = rms: LlamaForCausalLM has None": ["embedding.norm.kind=rms"],
    "norm.eps = 0.1: LlamaForCausalLM has 1e-05": ["norm.eps=0.1"],
    "position.kind = sinusoidal: LlamaForCausalLM has none": ["position.kind=sinusoidal"],
    "blocks.0.feedforward.kind = mlp: LlamaForCausalLM has gated": [
        "blocks.0.feedforward.kind=mlp",
        "blocks.0.feedforward.hidden=64",
    ],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_an_architecture_can_not_express_is_refused_by_name(message, tmp_path):
    spec = check(TransformerSpec, override(small_llama().model_dump(mode="json"), REFUSED[message]))
    with pytest.raises(CheckpointError) as caught:
        export_folder(spec.build(), None, tmp_path / "out", "llama")
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_layers_that_differ_are_refused_where_they_do(tmp_path):
    spec = small_llama(layers=4)
    block = spec.blocks[0]
    mixed = spec.replace(blocks=(block, block.replace(feedforward=block.feedforward.replace(hidden=64))))
    with pytest.raises(
        CheckpointError, match=r"blocks\.1\.feedforward\.hidden = 64: LlamaForCausalLM has 96; blocks\.3\."
    ):
        export_folder(mixed.build(), None, tmp_path / "out", "llama")
    alike = spec.replace(blocks=(block, block))
    assert export_folder(alike.build(), None, tmp_path / "out").model_type == "llama"


def test_auto_says_why_no_family_fits(tmp_path):
    spec = small_gpt2().replace(head={"kind": "tied", "softcap": 5.0})
    with pytest.raises(CheckpointError, match=r"no GPT2LMHeadModel: head\.softcap"):
        export_folder(spec.build(), None, tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"unknown family 'xlnet' \(known: auto, gpt2, llama, "):
        export_folder(spec.build(), None, tmp_path / "out", "xlnet")


CONFIGS = {
    "expected at most 10000 layers, found 1000000000": {"num_hidden_layers": 10**9},
    "the weights are quantised (quantization_config), in a format that isn't read": {
        "quantization_config": {"bits": 4}
    },
    "expected rope_parameters to be an object, found []": {"rope_parameters": []},
    'expected hidden_size to be a positive whole number, found "24"': {"hidden_size": "24"},
    "low_freq_factor is missing": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    "rope_type = dynamic is not supported": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "partial_rotary_factor = 0.5 is not supported": {"partial_rotary_factor": 0.5},
    "expected rope_scaling to be an object": {"rope_scaling": "yes"},
    "pretraining_tp = 2 is not supported": {"pretraining_tp": 2},
    "activation 'mish' is not known": {"hidden_act": "mish"},
    "activation '[]' is not known": {"hidden_act": []},
    "expected hidden_size to be a positive whole number, found -1": {"hidden_size": -1},
    "expected hidden_size to be a positive whole number, found 24.0": {"hidden_size": 24.0},
    "vocab_size is missing": {"vocab_size": None},
    "heads (5) must be a multiple of kv_heads (2)": {"num_attention_heads": 5},
    "heads (4) must divide width (25)": {"hidden_size": 25, "head_dim": None},
    "eps: Input should be greater than 0, got -1": {"rms_norm_eps": -1},
    "expected rope_theta to be a number": {"rope_theta": "ten"},
    "expected mlp_bias to be true or false, found 1": {"mlp_bias": 1},
    'expected tie_word_embeddings to be true or false, found "maybe"': {"tie_word_embeddings": "maybe"},
    "expected attention_dropout to be a number, found true": {"attention_dropout": True},
}


@pytest.mark.parametrize("message", CONFIGS)
def test_a_config_we_can_not_build_is_refused_by_field(tmp_path, message):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL, **CONFIGS[message]}))
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: ")


def test_the_old_rope_fields_mean_what_the_new_ones_do(tmp_path):
    read = FAMILIES["llama"].spec
    old = read({**SMALL, "rope_theta": 500_000.0, "rope_scaling": None})
    new = read({**SMALL, "rope_parameters": {"rope_theta": 500_000.0, "rope_type": "default"}})
    assert old == new
    assert old.blocks[0].attention.position.theta == 500_000.0


def rewrite(folder: Path, rename) -> None:
    """Store a model's tensors under other names, or more of them."""
    save_file(rename(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def test_old_files_with_bare_names_and_extra_masks_load(tmp_path):
    theirs = their_models.theirs("gpt2")[0]
    theirs.save_pretrained(tmp_path)
    extra = {"h.0.attn.bias": torch.ones(1, 1, 32, 32), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    rewrite(tmp_path, lambda tensors: {name.removeprefix("transformer."): t for name, t in tensors.items()} | extra)
    tokens = torch.randint(101, (2, 29))
    with torch.no_grad():
        torch.testing.assert_close(
            logits_of(load_model(tmp_path).model, tokens), theirs(tokens).logits, atol=1e-5, rtol=0
        )


def test_leftovers_on_either_side_are_listed(tmp_path):
    their_models.theirs("llama")[0].save_pretrained(tmp_path)

    def rename(tensors):
        tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(6)
        del tensors["model.norm.weight"]
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:50].clone()
        return tensors

    rewrite(tmp_path, rename)
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: checkpoint of another spec: 1 tensor missing: model.norm.weight; "
        "1 tensor unexpected: model.layers.0.self_attn.q_norm.weight; "
        "1 tensor of another shape: lm_head.weight (expected [101, 24], found [50, 24]) "
        "(give the weights and the config of the same model)"
    )


def test_shards_are_read_through_their_index(tmp_path):
    theirs = their_models.theirs("llama")[0]
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) == 9
    tokens = torch.randint(101, (2, 29))
    with torch.no_grad():
        torch.testing.assert_close(
            logits_of(load_model(tmp_path).model, tokens), theirs(tokens).logits, atol=1e-5, rtol=0
        )

    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    for change, message in (
        ({"model.norm.weight": "../secret.safetensors"}, "expected the name of a .safetensors file"),
        ({"model.norm.weight": "model-00099-of-00009.safetensors"}, "no such file"),
        ({"model.other.weight": "model-00001-of-00009.safetensors"}, "disagree about model.other.weight"),
        ({"model.norm.weight": 3}, "expected weight_map to map"),
    ):
        names = {**index["weight_map"], **change}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
        with pytest.raises(CheckpointError, match=message):
            load_model(tmp_path)


def test_a_model_for_another_task_is_named_in_the_advice(tmp_path):
    LlamaForSequenceClassification(LlamaConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"says LlamaForSequenceClassification, and it was read as LlamaForCausal"
    ):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["llama tied, multi-query", "gpt2", "t5", "bart"])
def test_a_head_that_differs_from_the_token_vectors_is_a_head_of_its_own(name, tmp_path):
    """Whatever the config says: so does transformers."""
    model, folder = their_models.theirs(name)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    family = FAMILIES[VARIANTS[name][0]]
    vectors = next(rule.theirs[0] for rule in family.rules(load_model(folder).spec) if "embedding.weight" in rule.ours)
    head = "lm_head.weight"
    same = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({**same, head: same[vectors].clone()}, tmp_path / "model.safetensors")
    assert load_model(tmp_path).spec.head.kind == "tied"
    save_file({**same, head: torch.randn(same[vectors].shape)}, tmp_path / "model.safetensors")
    loaded, tokens = load_model(tmp_path), their_models.some_tokens(2, 9)
    assert loaded.spec.head.kind == "untied"
    back = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = their_models.their_pass(back, tokens)[0]
        found = their_models.our_pass(loaded.model, tokens)[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_weights_of_whole_numbers_are_refused_by_name(tmp_path):
    their_models.theirs("llama")[0].save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"model.norm.weight": torch.ones(24, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match=r"1 tensor of whole numbers .*: model\.norm\.weight \(int8\)"):
        load_model(tmp_path)


def test_a_classifier_of_bart_is_refused_by_its_name(tmp_path):
    config = json.loads((their_models.theirs("bart")[1] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BartForSequenceClassification"]}))
    with pytest.raises(CheckpointError, match='architecture "BartForSequenceClassification" is not known'):
        load_model(tmp_path)
