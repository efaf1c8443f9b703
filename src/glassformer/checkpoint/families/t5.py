"""T5 and Flan-T5: an encoder-decoder with one trained bias of distance for all layers, RMSNorm first, no biases.

Source: Raffel et al. 2020; Chung et al. 2022; T5ForConditionalGeneration.
"""

from collections.abc import Collection
from typing import Any

from glassformer.checkpoint.families import parts
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
)
from glassformer.checkpoint.rename import Rule, same
from glassformer.errors import CheckpointError
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.attention.cross import CrossAttentionSpec
from glassformer.model.block import BlockSpec, PreNormSpec
from glassformer.model.embedding import TiedHeadSpec, TokenEmbeddingSpec, UntiedHeadSpec
from glassformer.model.feedforward import GatedSpec, MLPSpec
from glassformer.model.mask import BidirectionalSpec, CausalSpec
from glassformer.model.norm import RMSNormSpec
from glassformer.model.position import RelativeSpec, SharedSpec
from glassformer.model.transformer import EncoderSpec, TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec.

    The first T5 has its head tied and scales the stream before it; later ones don't scale, and have their own head.
    """
    refuse(config, {"is_decoder": (False, None), "is_encoder_decoder": (True, None)})
    width, dropout = size(config, "d_model"), number(config, "dropout_rate", 0.1)
    norm = RMSNormSpec(eps=number(config, "layer_norm_epsilon", 1e-6))
    tied = flag(config, "tie_word_embeddings", default=True)
    scale = width**-0.5 if flag(config, "scale_decoder_outputs", default=tied) else 1.0
    context = number(config, "n_positions") or 512
    encoder = EncoderSpec(
        context=context,
        layers=layers_of(config, "num_layers"),
        position=_position(config, both_ways=True),
        blocks=(_block(config, norm, decodes=False),),
        norm=norm,
        start=(number(config, "decoder_start_token_id") or number(config, "pad_token_id") or 0,),
    )
    return TransformerSpec(
        vocabulary=size(config, "vocab_size"),
        width=width,
        context=context,
        layers=layers_of(config, "num_decoder_layers", "num_layers"),
        embedding=TokenEmbeddingSpec(dropout=dropout),
        position=_position(config, both_ways=False),
        blocks=(_block(config, norm, decodes=True),),
        norm=norm,
        head=TiedHeadSpec(scale=scale) if tied else UntiedHeadSpec(scale=scale),
        encoder=encoder,
    )


def settle(config: Tree, names: Collection[str]) -> Tree:
    """Whether the head has a matrix of its own: their program says in a config it writes that it hasn't, always."""
    if flag(config, "scale_decoder_outputs", default=flag(config, "tie_word_embeddings", default=True)):
        return {**config, "scale_decoder_outputs": True, "tie_word_embeddings": True}
    return {**config, "scale_decoder_outputs": False, "tie_word_embeddings": "lm_head.weight" not in names}


def _position(config: Tree, *, both_ways: bool) -> RelativeSpec:
    return RelativeSpec(
        buckets=number(config, "relative_attention_num_buckets", 32),
        furthest=number(config, "relative_attention_max_distance", 128),
        bidirectional=both_ways,
    )


def _block(config: Tree, norm: RMSNormSpec, *, decodes: bool) -> BlockSpec:
    heads, dropout = size(config, "num_heads"), number(config, "dropout_rate", 0.1)
    common: dict[str, Any] = {
        "heads": heads, "kv_heads": heads, "head_width": size(config, "d_kv"), "scale": 1.0, "dropout": dropout,
    }  # fmt: skip
    named = config.get("feed_forward_proj", "relu")
    if not isinstance(named, str):
        raise CheckpointError(f"expected feed_forward_proj to be a name, found {str(named)[:80]}")
    gated, act = named.startswith("gated-"), activation("gelu_new" if named == "gated-gelu" else named.split("-")[-1])
    kind = GatedSpec if gated else MLPSpec
    return BlockSpec(
        attention=GroupedAttentionSpec(
            position=SharedSpec(), mask=CausalSpec() if decodes else BidirectionalSpec(), **common
        ),
        feedforward=kind(hidden=size(config, "d_ff"), activation=act, dropout=dropout),
        norm=norm,
        wiring=PreNormSpec(dropout=dropout),
        cross=CrossAttentionSpec(**common) if decodes else None,
    )


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    block: Any = spec.blocks[0]
    position = spec.position
    act = THEIR_ACTIVATION[block.feedforward.activation]
    return {
        "vocab_size": spec.vocabulary,
        "d_model": spec.width,
        "d_kv": block.attention.width_of_head(spec.width),
        "d_ff": block.feedforward.hidden,
        "num_layers": spec.encoder.layers if spec.encoder else spec.layers,
        "num_decoder_layers": spec.layers,
        "num_heads": block.attention.heads,
        "n_positions": spec.context,
        "feed_forward_proj": _projection(block.feedforward.kind, act),
        "relative_attention_num_buckets": getattr(position, "buckets", 32),
        "relative_attention_max_distance": getattr(position, "furthest", 128),
        "layer_norm_epsilon": block.norm.eps,
        "dropout_rate": block.wiring.dropout,
        "decoder_start_token_id": spec.encoder.start[0] if spec.encoder else 0,
        "scale_decoder_outputs": getattr(spec.head, "scale", 1.0) != 1.0,
        "tie_word_embeddings": spec.head.kind == "tied",
        "is_encoder_decoder": True,
    }


def _projection(kind: str, act: str) -> str:
    if kind != "gated":
        return act
    return "gated-gelu" if act == "gelu_new" else f"gated-{act}"


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    assert spec.encoder is not None, "a family of encoder-decoders was chosen"
    table = [same("shared.weight", "embedding.weight")]
    for side, stack, here in (("encoder", spec.encoder, "encoder."), ("decoder", spec, "")):
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        table.append(same(bias, f"{here}position.table"))
        table += parts.norm(f"{side}.final_layer_norm", f"{here}norm", stack.norm, spec.width)
        for index, block in enumerate(stack.each_block()):
            table += _block_rules(f"{side}.block.{index}.layer", f"{here}blocks.{index}", block, spec.width)
    return table if spec.head.kind == "tied" else [*table, same("lm_head.weight", "head.own.weight")]


def _block_rules(there: str, here: str, block: BlockSpec, width: int) -> list[Rule]:
    table: list[Rule] = []
    attentions = [("0.SelfAttention", "attention"), *([("1.EncDecAttention", "cross")] if block.cross else [])]
    last = len(attentions)
    for theirs, ours in attentions:
        for name, called in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o")):
            table.append(same(f"{there}.{theirs}.{called}.weight", f"{here}.{ours}.{name}.weight"))
    gated = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
    names = gated if block.feedforward.kind == "gated" else {"up": "wi", "down": "wo"}
    for ours, theirs in names.items():
        table.append(same(f"{there}.{last}.DenseReluDense.{theirs}.weight", f"{here}.feedforward.{ours}.weight"))
    norms = ["norm1", *(["norm_cross"] if block.cross else []), "norm2"]
    for index, ours in enumerate(norms):
        table += parts.norm(f"{there}.{index}.layer_norm", f"{here}.{ours}", block.norm, width)
    return table


FAMILY = Family(
    model_type="t5",
    architecture="T5ForConditionalGeneration",
    read=read,
    write=write,
    widen=lambda spec: spec,
    rules=rules,
    prefix="",
    # The shared token vectors under their other names; a bias that cross-attention never had a use for.
    unused=(
        r"(en|de)coder\.embed_tokens\.weight",
        r"lm_head\.weight",
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
    settle=settle,
)
