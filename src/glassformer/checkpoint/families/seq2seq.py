"""What BART and its descendants have in common: an encoder and a decoder of post-norm blocks, biases everywhere."""

from typing import Any

from glassformer.checkpoint.families import parts
from glassformer.checkpoint.families.base import (
    THEIR_ACTIVATION,
    Tree,
    activation,
    flag,
    layers_of,
    listed,
    number,
    refuse,
    shown,
    size,
    with_bias,
    with_biases,
)
from glassformer.checkpoint.rename import Rule, filled, row, same
from glassformer.errors import CheckpointError
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.attention.cross import CrossAttentionSpec
from glassformer.model.block import BlockSpec, PostNormSpec
from glassformer.model.embedding import TiedHeadSpec, TokenEmbeddingSpec, UntiedHeadSpec
from glassformer.model.feedforward import MLPSpec
from glassformer.model.mask import BidirectionalSpec, CausalSpec
from glassformer.model.norm import LayerNormSpec, NormSpec
from glassformer.model.position import PositionSpec
from glassformer.model.stack import StackSpec
from glassformer.model.transformer import EncoderSpec, TransformerSpec

SIDES = ("encoder", "decoder")


def read(config: Tree, position: PositionSpec, embedding_norm: NormSpec | None) -> TransformerSpec:
    """Their config as a spec; `position` and the embedding's norm are those of the family."""
    refuse(config, {"is_encoder_decoder": (True, None)})
    refuse(config, dict.fromkeys(("normalize_before", "add_final_layer_norm", "is_decoder"), (False, None)))
    width = size(config, "d_model")
    encoder, decoder = (_block(config, side) for side in SIDES)
    context = size(config, "max_position_embeddings")
    named = listed(config, "architectures")
    if named and str(named[0]).endswith(("Classification", "Answering", "CausalLM")):
        raise CheckpointError(f"architecture {shown(named[0])} is not known (known: {', '.join(ARCHITECTURES)})")
    tied = flag(config, "tie_word_embeddings", default=True)
    return TransformerSpec(
        vocabulary=size(config, "vocab_size"),
        width=width,
        context=context,
        layers=layers_of(config, "decoder_layers"),
        embedding=TokenEmbeddingSpec(
            scale=width**0.5 if flag(config, "scale_embedding", default=False) else 1.0,
            norm=embedding_norm,
            dropout=number(config, "dropout", 0.1),
        ),
        position=position,
        blocks=(decoder,),
        norm=None,
        head=TiedHeadSpec(bias=True) if tied else UntiedHeadSpec(bias=True),
        encoder=EncoderSpec(
            context=context,
            layers=layers_of(config, "encoder_layers"),
            position=position,
            blocks=(encoder,),
            norm=None,
            start=_start(config),
        ),
    )  # fmt: skip


def _start(config: Tree) -> tuple[int, ...]:
    """The tokens that the decoder begins with: the one that starts it, and one that is forced to follow."""
    named = [number(config, "decoder_start_token_id"), number(config, "forced_bos_token_id")]
    return tuple(token for token in named if token is not None) or (number(config, "eos_token_id") or 0,)


def _block(config: Tree, side: str) -> BlockSpec:
    heads, dropout = size(config, f"{side}_attention_heads"), number(config, "dropout", 0.1)
    weighed = number(config, "attention_dropout") or 0.0
    common: dict[str, Any] = {"heads": heads, "kv_heads": heads, "bias": True, "out_bias": True, "dropout": weighed}
    mask = BidirectionalSpec() if side == "encoder" else CausalSpec()
    return BlockSpec(
        attention=GroupedAttentionSpec(mask=mask, **common),
        feedforward=MLPSpec(
            hidden=size(config, f"{side}_ffn_dim"),
            activation=activation(config.get("activation_function", "gelu")),
            bias=True,
            dropout=number(config, "activation_dropout") or 0.0,
        ),
        norm=LayerNormSpec(),
        wiring=PostNormSpec(dropout=dropout),
        cross=CrossAttentionSpec(**common) if side == "decoder" else None,
    )


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config, without what the families differ in."""
    fields: dict[str, Any] = {}
    start = spec.encoder.start if spec.encoder else (0,)
    for side, stack in zip(SIDES, (spec.encoder or spec, spec), strict=True):
        block: Any = stack.blocks[0]
        fields |= {
            f"{side}_layers": stack.layers,
            f"{side}_attention_heads": block.attention.heads,
            f"{side}_ffn_dim": block.feedforward.hidden,
        }
    block = spec.blocks[0]
    return {
        **fields,
        "vocab_size": spec.vocabulary,
        "d_model": spec.width,
        "max_position_embeddings": spec.context,
        "activation_function": THEIR_ACTIVATION[block.feedforward.activation],
        "dropout": block.wiring.dropout,
        "attention_dropout": getattr(block.attention, "dropout", 0.0),
        "activation_dropout": getattr(block.feedforward, "dropout", 0.0),
        "scale_embedding": spec.embedding.scale != 1.0,
        "decoder_start_token_id": start[0],
        "forced_bos_token_id": start[1] if len(start) > 1 else None,
        "tie_word_embeddings": spec.head.kind == "tied",
        "is_encoder_decoder": True,
    }


def widen(spec: TransformerSpec) -> TransformerSpec:
    """With every bias: one that is zero changes nothing."""

    def blocks(stack: StackSpec) -> tuple[BlockSpec, ...]:
        return tuple(
            block.replace(
                attention=with_biases(block.attention, bias=True, out_bias=True),
                cross=block.cross and with_biases(block.cross, bias=True, out_bias=True),
                feedforward=with_biases(block.feedforward, bias=True),
                norm=with_bias(block.norm),
            )
            for block in stack.blocks
        )

    encoder = spec.encoder and spec.encoder.replace(blocks=blocks(spec.encoder))
    head = with_biases(spec.head, bias=True) if spec.head.kind in ("tied", "untied") else spec.head
    embedding = spec.embedding.replace(norm=with_bias(spec.embedding.norm))
    return spec.replace(blocks=blocks(spec), encoder=encoder, head=head, embedding=embedding)


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table, but for positions that are learned."""
    assert spec.encoder is not None, "a family of encoder-decoders was chosen"
    table = [same("model.shared.weight", "embedding.weight")]
    for side, stack, here in (("encoder", spec.encoder, "encoder."), ("decoder", spec, "")):
        table += (
            parts.norm(f"model.{side}.layernorm_embedding", f"{here}embedding_norm", spec.embedding.norm, spec.width)
            if spec.embedding.norm
            else []
        )
        for index, block in enumerate(stack.each_block()):
            table += _block_rules(f"model.{side}.layers.{index}", f"{here}blocks.{index}", block, spec.width)
    bias = (1, spec.vocabulary)
    biased = getattr(spec.head, "bias", False)
    table.append(row("final_logits_bias", "head.bias") if biased else filled("final_logits_bias", bias, 0.0))
    return table if spec.head.kind == "tied" else [*table, same("lm_head.weight", "head.own.weight")]


def _block_rules(there: str, here: str, block: BlockSpec, D: int) -> list[Rule]:
    feedforward: Any = block.feedforward
    attentions: list[tuple[str, str, Any]] = [("self_attn", "attention", block.attention)]
    norms = {"norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"}
    if block.cross is not None:
        attentions.append(("encoder_attn", "cross", block.cross))
        norms["norm_cross"] = "encoder_attn_layer_norm"
    table: list[Rule] = []
    for theirs, ours, kind in attentions:
        for name in ("q", "k", "v", "out"):
            biased = kind.out_bias if name == "out" else kind.bias
            table += parts.linear(f"{there}.{theirs}.{name}_proj", f"{here}.{ours}.{name}", biased, True, D)
    for name, theirs, outputs in (("up", "fc1", feedforward.hidden), ("down", "fc2", D)):
        table += parts.linear(f"{there}.{theirs}", f"{here}.feedforward.{name}", feedforward.bias, True, outputs)
    for ours, theirs in norms.items():
        table += parts.norm(f"{there}.{theirs}", f"{here}.{ours}", block.norm, D)
    return table


ARCHITECTURES = ("BartForConditionalGeneration", "MarianMTModel")
UNUSED = (r"model\.(en|de)coder\.embed_tokens\.weight", r"lm_head\.weight", r"model\.(en|de)coder\.version")
"""The shared token vectors under their other names."""
