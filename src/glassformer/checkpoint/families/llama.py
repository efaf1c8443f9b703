"""Llama: rotary positions, RMSNorm, gated feed-forward, grouped queries.

Source: Touvron et al. 2023; LlamaForCausalLM.
"""

from typing import Any

from glassformer.checkpoint.families.base import THEIR_ACTIVATION, Family, Tree, activation, refuse, size
from glassformer.checkpoint.rename import Rule, filled, same
from glassformer.errors import CheckpointError
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.block import BlockSpec
from glassformer.model.embedding import TiedHeadSpec, UntiedHeadSpec
from glassformer.model.feedforward import GatedSpec
from glassformer.model.norm import RMSNormSpec
from glassformer.model.position import RotarySpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    refuse(config, {"pretraining_tp": (1, None), "partial_rotary_factor": (1.0, None)})
    heads = size(config, "num_attention_heads")
    norm = RMSNormSpec(eps=config.get("rms_norm_eps", 1e-6))
    biased = config.get("attention_bias", False)
    block = BlockSpec(
        attention=GroupedAttentionSpec(
            heads=heads,
            kv_heads=size(config, "num_key_value_heads", "num_attention_heads"),
            head_width=None if config.get("head_dim") is None else size(config, "head_dim"),
            position=RotarySpec(theta=theta(config)),
            bias=biased,
            out_bias=biased,
            dropout=config.get("attention_dropout", 0.0),
        ),
        feedforward=GatedSpec(
            hidden=size(config, "intermediate_size"),
            activation=activation(config.get("hidden_act", "silu")),
            bias=config.get("mlp_bias", False),
        ),
        norm=norm,
    )
    return TransformerSpec(
        vocabulary=size(config, "vocab_size"),
        width=size(config, "hidden_size"),
        context=2048 if config.get("max_position_embeddings") is None else size(config, "max_position_embeddings"),
        layers=size(config, "num_hidden_layers"),
        blocks=(block,),
        norm=norm,
        head=TiedHeadSpec() if config.get("tie_word_embeddings", False) else UntiedHeadSpec(),
    )


def theta(config: Tree) -> float:
    """The base of the rotation, from the new field `rope_parameters` or the old `rope_theta` and `rope_scaling`."""
    facts: dict[str, Any] = {"rope_theta": config.get("rope_theta", 10_000.0)}
    for name in ("rope_scaling", "rope_parameters"):
        extra = config.get(name) or {}
        if not isinstance(extra, dict):
            raise CheckpointError(f"config.json: expected {name} to be an object, found {str(extra)[:80]}")
        facts.update(extra)
    kind = facts.get("rope_type", facts.get("type", "default"))
    if kind != "default":
        raise CheckpointError(f"config.json: rope_type = {str(kind)[:80]} is not supported (only default)")
    refuse(facts, {"partial_rotary_factor": (1.0, None)})
    return facts["rope_theta"]


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    block = spec.blocks[0]
    attention, feedforward = block.attention, block.feedforward
    base = getattr(attention.position, "theta", 10_000.0)
    return {
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "intermediate_size": feedforward.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.width_of_head(spec.width),
        "hidden_act": THEIR_ACTIVATION[feedforward.activation],
        "max_position_embeddings": spec.context,
        "rms_norm_eps": block.norm.eps,
        "rope_theta": base,
        "rope_parameters": {"rope_theta": base, "rope_type": "default"},
        "attention_bias": attention.bias or attention.out_bias,
        "mlp_bias": feedforward.bias,
        "attention_dropout": attention.dropout,
        "tie_word_embeddings": spec.head.kind == "tied",
    }


def widen(spec: TransformerSpec) -> TransformerSpec:
    """With every gain, and all biases of attention where it has some: a gain of one or a bias of zero is none."""

    def wide(norm: Any) -> Any:
        return norm.replace(gain=True) if norm.kind == "rms" else norm

    blocks = []
    for block in spec.blocks:
        biased = block.attention.bias or block.attention.out_bias
        attention = block.attention.replace(bias=biased, out_bias=biased)
        blocks.append(block.replace(attention=attention, norm=wide(block.norm)))
    return spec.replace(blocks=tuple(blocks), norm=wide(spec.norm))


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table; a gain that our model doesn't have is exported as ones, a bias as zeros."""
    D = spec.width

    def norm(theirs: str, ours: str, gain: bool) -> Rule:
        return same(theirs, ours) if gain else filled(theirs, (D,), 1.0)

    table = [
        same("model.embed_tokens.weight", "embedding.weight"),
        norm("model.norm.weight", "norm.weight", getattr(spec.norm, "gain", False)),
    ]
    for index, block in enumerate(spec.each_block()):
        theirs, ours = f"model.layers.{index}", f"blocks.{index}"
        attention, gain = block.attention, getattr(block.norm, "gain", False)
        table += [
            norm(f"{theirs}.input_layernorm.weight", f"{ours}.norm1.weight", gain),
            norm(f"{theirs}.post_attention_layernorm.weight", f"{ours}.norm2.weight", gain),
        ]
        C = attention.width_of_head(D)
        outputs = {"q": attention.heads * C, "k": attention.kv_heads * C, "v": attention.kv_heads * C, "out": D}
        for name, theirs_too in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj"}.items():
            there, here = f"{theirs}.self_attn.{theirs_too}", f"{ours}.attention.{name}"
            table.append(same(f"{there}.weight", f"{here}.weight"))
            if attention.out_bias if name == "out" else attention.bias:
                table.append(same(f"{there}.bias", f"{here}.bias"))
            elif attention.bias or attention.out_bias:
                table.append(filled(f"{there}.bias", (outputs[name],), 0.0))
        for name in ("gate", "up", "down"):
            there, here = f"{theirs}.mlp.{name}_proj", f"{ours}.feedforward.{name}"
            table.append(same(f"{there}.weight", f"{here}.weight"))
            if block.feedforward.bias:
                table.append(same(f"{there}.bias", f"{here}.bias"))
    return table if spec.head.kind == "tied" else [*table, same("lm_head.weight", "head.own.weight")]


FAMILY = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    read=read,
    write=write,
    widen=widen,
    rules=rules,
    prefix="model.",
    # Frequencies that old files carry along, and the head of a tied model, which is the embedding once more.
    unused=(r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"lm_head\.weight"),
)
