"""GPT-2: learned positions, LayerNorm, GELU, biases everywhere. Source: Radford et al. 2019; GPT2LMHeadModel.

Its matrices are stored as [inputs, outputs], and q, k and v lie in one.
"""

from typing import Any

from glassformer.checkpoint.families.base import (
    THEIR_ACTIVATION,
    Family,
    Tree,
    activation,
    flag,
    layers_of,
    number,
    refuse,
    size,
    with_bias,
    with_biases,
)
from glassformer.checkpoint.rename import Rule, filled, same, split, transposed
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.block import BlockSpec, PreNormSpec
from glassformer.model.embedding import TiedHeadSpec, TokenEmbeddingSpec, UntiedHeadSpec
from glassformer.model.feedforward import MLPSpec
from glassformer.model.norm import LayerNormSpec
from glassformer.model.position import LearnedSpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    refuse(config, {"scale_attn_by_inverse_layer_idx": (False, None), "add_cross_attention": (False, None)})
    width, heads, length = size(config, "n_embd"), size(config, "n_head"), size(config, "n_positions")
    norm = LayerNormSpec(eps=number(config, "layer_norm_epsilon", 1e-5))
    block = BlockSpec(
        attention=GroupedAttentionSpec(
            heads=heads,
            kv_heads=heads,
            scale=None if flag(config, "scale_attn_weights", default=True) else 1.0,
            bias=True,
            out_bias=True,
            dropout=number(config, "attn_pdrop", 0.1),
        ),
        feedforward=MLPSpec(
            hidden=4 * width if config.get("n_inner") is None else size(config, "n_inner"),
            activation=activation(config.get("activation_function", "gelu_new")),
            bias=True,
        ),
        norm=norm,
        wiring=PreNormSpec(dropout=number(config, "resid_pdrop", 0.1)),
    )
    return TransformerSpec(
        vocabulary=size(config, "vocab_size"),
        width=width,
        context=size(config, "n_ctx", "n_positions"),
        layers=layers_of(config, "n_layer"),
        embedding=TokenEmbeddingSpec(dropout=number(config, "embd_pdrop", 0.1)),
        position=LearnedSpec(length=length),
        blocks=(block,),
        norm=norm,
        head=TiedHeadSpec() if flag(config, "tie_word_embeddings", default=True) else UntiedHeadSpec(),
    )


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    block: Any = spec.blocks[0]
    attention, width = block.attention, block.attention.width_of_head(spec.width)
    return {
        "vocab_size": spec.vocabulary,
        "n_positions": spec.position.limit or spec.context,
        "n_ctx": spec.context,
        "n_embd": spec.width,
        "n_layer": spec.layers,
        "n_head": attention.heads,
        "n_inner": block.feedforward.hidden,
        "activation_function": THEIR_ACTIVATION[block.feedforward.activation],
        "layer_norm_epsilon": block.norm.eps,
        "scale_attn_weights": getattr(attention, "scale", None) in (None, width**-0.5),
        "embd_pdrop": spec.embedding.dropout,
        "attn_pdrop": getattr(attention, "dropout", 0.0),
        "resid_pdrop": block.wiring.dropout,
        "tie_word_embeddings": spec.head.kind == "tied",
    }


def widen(spec: TransformerSpec) -> TransformerSpec:
    """With every bias: one that is zero changes nothing."""
    blocks = tuple(
        block.replace(
            attention=with_biases(block.attention, bias=True, out_bias=True),
            feedforward=with_biases(block.feedforward, bias=True),
            norm=with_bias(block.norm),
        )
        for block in spec.blocks
    )
    return spec.replace(blocks=blocks, norm=with_bias(spec.norm))


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table; a bias that our model doesn't have is exported as zeros."""
    D = spec.width

    def norm(theirs: str, ours: str, biased: bool) -> list[Rule]:
        bias = same(f"{theirs}.bias", f"{ours}.bias") if biased else filled(f"{theirs}.bias", (D,), 0.0)
        return [same(f"{theirs}.weight", f"{ours}.weight"), bias]

    def linear(theirs: str, ours: str, outputs: int, biased: bool) -> list[Rule]:
        bias = same(f"{theirs}.bias", f"{ours}.bias") if biased else filled(f"{theirs}.bias", (outputs,), 0.0)
        return [transposed(f"{theirs}.weight", f"{ours}.weight"), bias]

    table = [
        same("transformer.wte.weight", "embedding.weight"),
        same("transformer.wpe.weight", "position.table"),
        *norm("transformer.ln_f", "norm", getattr(spec.norm, "bias", False)),
    ]
    for index, block in enumerate(spec.each_block()):
        h, ours, biased = f"transformer.h.{index}", f"blocks.{index}", getattr(block.norm, "bias", False)
        attention: Any = block.attention
        feedforward: Any = block.feedforward
        parts = [f"{ours}.attention.{part}" for part in "qkv"]
        bias = f"{h}.attn.c_attn.bias"
        table += [
            *norm(f"{h}.ln_1", f"{ours}.norm1", biased),
            *norm(f"{h}.ln_2", f"{ours}.norm2", biased),
            split(f"{h}.attn.c_attn.weight", [f"{part}.weight" for part in parts], [D] * 3, transpose=True),
            split(bias, [f"{part}.bias" for part in parts], [D] * 3) if attention.bias else filled(bias, (3 * D,), 0.0),
            *linear(f"{h}.attn.c_proj", f"{ours}.attention.out", D, attention.out_bias),
            *linear(f"{h}.mlp.c_fc", f"{ours}.feedforward.up", feedforward.hidden, feedforward.bias),
            *linear(f"{h}.mlp.c_proj", f"{ours}.feedforward.down", D, feedforward.bias),
        ]
    return table if spec.head.kind == "tied" else [*table, same("lm_head.weight", "head.own.weight")]


FAMILY = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    read=read,
    write=write,
    widen=widen,
    rules=rules,
    prefix="transformer.",
    # Masks that old files carry along, and the head of a tied model, which is the embedding once more.
    unused=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias", r"lm_head\.weight"),
)
