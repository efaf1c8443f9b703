"""GPT-NeoX and Pythia: attention and feed-forward side by side, LayerNorm, a quarter of each head turned.

q, k and v lie in one matrix, head by head. Source: Black et al. 2022; GPTNeoXForCausalLM.
"""

from typing import Any

from glassformer.checkpoint.families import parts
from glassformer.checkpoint.families.base import (
    THEIR_ACTIVATION,
    Family,
    Tree,
    activation,
    flag,
    number,
    refuse,
    size,
    with_biases,
)
from glassformer.checkpoint.families.rope import facts, rope_parameters, rotary_of
from glassformer.checkpoint.rename import Rule, by_head, filled, same
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.block import BlockSpec, ParallelSpec, PreNormSpec
from glassformer.model.embedding import TokenEmbeddingSpec
from glassformer.model.feedforward import MLPSpec
from glassformer.model.norm import LayerNormSpec
from glassformer.model.position import RotarySpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    refuse(config, {"is_decoder": (False, True, None)})
    norm = LayerNormSpec(eps=number(config, "layer_norm_eps", 1e-5))
    heads, biased = size(config, "num_attention_heads"), flag(config, "attention_bias", default=True)
    kind = ParallelSpec if flag(config, "use_parallel_residual", default=True) else PreNormSpec
    dropout = number(config, "hidden_dropout") or 0.0
    block = BlockSpec(
        attention=GroupedAttentionSpec(
            heads=heads,
            kv_heads=heads,
            position=_rotation(config),
            bias=biased,
            out_bias=biased,
            dropout=number(config, "attention_dropout") or 0.0,
        ),
        feedforward=MLPSpec(
            hidden=size(config, "intermediate_size"),
            activation=activation(config.get("hidden_act", "gelu")),
            bias=True,
        ),
        norm=norm,
        wiring=kind(dropout=dropout),
    )
    embedding = TokenEmbeddingSpec(dropout=dropout)
    return parts.decoder(config, lambda index: block, norm, embedding=embedding)


def _rotation(config: Tree) -> RotarySpec:
    known = facts(config)
    known.setdefault("rope_theta", number(config, "rotary_emb_base"))
    known.setdefault("partial_rotary_factor", number(config, "rotary_pct"))
    return rotary_of(known, config, fraction=0.25)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    block: Any = spec.blocks[0]
    attention, feedforward = block.attention, block.feedforward
    table = rope_parameters(attention.position, partial=True)
    return {
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "intermediate_size": feedforward.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": attention.heads,
        "hidden_act": THEIR_ACTIVATION[feedforward.activation],
        "max_position_embeddings": spec.context,
        "layer_norm_eps": block.norm.eps,
        "rope_parameters": table,
        "rotary_emb_base": table["rope_theta"],
        "rotary_pct": table.get("partial_rotary_factor", 1.0),
        "attention_bias": parts.biased(attention),
        "attention_dropout": getattr(attention, "dropout", 0.0),
        "hidden_dropout": block.wiring.dropout,
        "use_parallel_residual": block.wiring.kind == "parallel",
        "tie_word_embeddings": spec.head.kind == "tied",
    }


def widen(spec: TransformerSpec) -> TransformerSpec:
    """With every bias: one that is zero changes nothing."""
    blocks = []
    for block in spec.blocks:
        biased = parts.biased(block.attention)
        attention = with_biases(block.attention, bias=biased, out_bias=biased)
        feedforward = block.feedforward
        wide = feedforward.replace(bias=True) if feedforward.kind == "mlp" else feedforward
        blocks.append(block.replace(attention=attention, feedforward=wide))
    return parts.wide_norms(spec.replace(blocks=tuple(blocks)), biased=True)


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    D = spec.width
    table = [
        same("gpt_neox.embed_in.weight", "embedding.weight"),
        *parts.norm("gpt_neox.final_layer_norm", "norm", spec.norm, D),
    ]
    for index, block in enumerate(spec.each_block()):
        there, here = f"gpt_neox.layers.{index}", f"blocks.{index}"
        attention: Any = block.attention
        feedforward: Any = block.feedforward
        biased = parts.biased(attention)
        qkv = f"{there}.attention.query_key_value"
        ours = [f"{here}.attention.{name}" for name in "qkv"]
        table += [
            *parts.norm(f"{there}.input_layernorm", f"{here}.norm1", block.norm, D),
            *parts.norm(f"{there}.post_attention_layernorm", f"{here}.norm2", block.norm, D),
            by_head(f"{qkv}.weight", [f"{part}.weight" for part in ours], attention.heads),
            *parts.linear(f"{there}.attention.dense", f"{here}.attention.out", attention.out_bias, biased, D),
            *parts.linear(
                f"{there}.mlp.dense_h_to_4h", f"{here}.feedforward.up", feedforward.bias, True, feedforward.hidden
            ),
            *parts.linear(f"{there}.mlp.dense_4h_to_h", f"{here}.feedforward.down", feedforward.bias, True, D),
        ]
        if attention.bias:
            table.append(by_head(f"{qkv}.bias", [f"{part}.bias" for part in ours], attention.heads))
        elif biased:
            table.append(filled(f"{qkv}.bias", (3 * attention.heads * attention.width_of_head(D),), 0.0))
    return table if spec.head.kind == "tied" else [*table, same("embed_out.weight", "head.own.weight")]


FAMILY = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    read=read,
    write=write,
    widen=widen,
    rules=rules,
    prefix="gpt_neox.",
    # Masks and frequencies that old files carry along, and the head of a tied model.
    tied=r"embed_out\.weight",
    unused=(
        r"(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
        r"embed_out\.weight",
    ),
)
