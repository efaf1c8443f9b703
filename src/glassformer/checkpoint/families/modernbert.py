"""ModernBERT: an encoder with rotary positions, norms before each part, GeGLU, and a window in most layers.

q, k and v lie in one matrix, gate and up in another; the first layer's attention reads the stream as it is.
Source: Warner et al. 2024; ModernBertForMaskedLM, ModernBertModel and its sisters.
"""

from typing import Any

from glassformer.checkpoint.families import encoders, parts
from glassformer.checkpoint.families.base import THEIR_ACTIVATION, Family, Tree, activation, flag, number, size
from glassformer.checkpoint.families.rope import table
from glassformer.checkpoint.rename import Rule, same, split
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.block import BlockSpec, PreNormSpec
from glassformer.model.embedding import TokenEmbeddingSpec, TransformSpec
from glassformer.model.feedforward import GatedSpec
from glassformer.model.mask import BidirectionalSpec
from glassformer.model.norm import LayerNormSpec
from glassformer.model.position import RotarySpec
from glassformer.model.transformer import TransformerSpec

FULL, SLIDING = "full_attention", "sliding_attention"


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    norm = LayerNormSpec(eps=number(config, "norm_eps", 1e-5), bias=flag(config, "norm_bias", default=False))
    blocks = [_block(config, index, kind, norm) for index, kind in enumerate(_kinds(config))]
    act = activation(config.get("classifier_activation", "gelu"))
    before = TransformSpec(activation=act, bias=flag(config, "classifier_bias", default=False), norm=norm)
    pooling = "first" if config.get("classifier_pooling", "cls") == "cls" else "mean"
    dropout = number(config, "classifier_dropout") or 0.0
    labelled = {"transform": before, "dropout": dropout, "pooling": pooling}
    head = encoders.head(config, before, None, labelled)
    if head.kind == "tokens":
        head = head.replace(transform=before)
    if head.kind in ("tied", "untied"):
        head = head.replace(bias=flag(config, "decoder_bias", default=True))
    return TransformerSpec(
        vocabulary=size(config, "vocab_size"),
        width=size(config, "hidden_size"),
        context=size(config, "max_position_embeddings"),
        layers=len(blocks),
        embedding=TokenEmbeddingSpec(norm=norm, dropout=number(config, "embedding_dropout") or 0.0),
        blocks=parts.pattern(blocks),
        norm=norm,
        head=head,
    )


def _kinds(config: Tree) -> list[str]:
    every = size({"global_attn_every_n_layers": 3, **config}, "global_attn_every_n_layers")
    return parts.layer_kinds(config, lambda index: SLIDING if index % every else FULL)


def _block(config: Tree, index: int, kind: str, norm: LayerNormSpec) -> BlockSpec:
    tables = table(config, "rope_parameters")
    name, usual = ("global_rope_theta", 160_000.0) if kind == FULL else ("local_rope_theta", 10_000.0)
    theta = number(table(tables, kind), "rope_theta", number(config, name, usual))
    biased, heads = flag(config, "attention_bias", default=False), size(config, "num_attention_heads")
    window = number(config, "local_attention", 128) // 2 if kind == SLIDING else None
    return BlockSpec(
        attention=GroupedAttentionSpec(
            heads=heads, kv_heads=heads, bias=biased, out_bias=biased, position=RotarySpec(theta=theta),
            mask=BidirectionalSpec(window=window), dropout=number(config, "attention_dropout") or 0.0,
        ),
        feedforward=GatedSpec(
            hidden=size(config, "intermediate_size"), bias=flag(config, "mlp_bias", default=False),
            activation=activation(config.get("hidden_activation", "gelu")),
        ),
        norm=norm,
        wiring=PreNormSpec(attention_norm=index > 0, dropout=number(config, "mlp_dropout") or 0.0),
    )  # fmt: skip


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    blocks: list[Any] = list(spec.each_block())
    block, masks = blocks[0], [one.attention.mask for one in blocks]
    kinds = [SLIDING if getattr(mask, "window", None) is not None else FULL for mask in masks]
    thetas = dict(zip(kinds, (getattr(one.attention.position, "theta", 1e4) for one in blocks), strict=True))
    windows = [mask.window for mask, kind in zip(masks, kinds, strict=True) if kind == SLIDING]
    head, transform = spec.head, spec.head.transform
    return {
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "intermediate_size": block.feedforward.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": block.attention.heads,
        "hidden_activation": THEIR_ACTIVATION.get(block.feedforward.activation, "gelu"),
        "max_position_embeddings": spec.context,
        "norm_eps": block.norm.eps,
        "norm_bias": getattr(block.norm, "bias", False),
        "attention_bias": parts.biased(block.attention),
        "mlp_bias": getattr(block.feedforward, "bias", False),
        "local_attention": 2 * max(windows, default=64),
        "layer_types": kinds,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": thetas.get(kind, 1e4)} for kind in (FULL, SLIDING)
        },
        "classifier_activation": THEIR_ACTIVATION.get(getattr(transform, "activation", "gelu"), "gelu"),
        "classifier_bias": getattr(transform, "bias", False),
        "classifier_pooling": "mean" if getattr(head, "pooling", "first") == "mean" else "cls",
        "decoder_bias": getattr(head, "bias", True),
        "tie_word_embeddings": head.kind != "untied",
        **encoders.label_fields(spec),
        **encoders.sentence_fields(spec),
    }


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    D = spec.width
    table = [
        same("model.embeddings.tok_embeddings.weight", "embedding.weight"),
        *_norm("model.embeddings.norm", "embedding_norm", spec.embedding.norm),
        *_norm("model.final_norm", "norm", spec.norm),
    ]
    for index, block in enumerate(spec.each_block()):
        there, here = f"model.layers.{index}", f"blocks.{index}"
        kind: Any = block.attention
        feedforward: Any = block.feedforward
        qkv = [f"{here}.attention.{name}" for name in "qkv"]
        opened = [f"{here}.feedforward.{name}" for name in ("gate", "up")]
        for ours, theirs in (("norm1", "attn_norm"), ("norm2", "mlp_norm")):
            if ours in block.norms:
                table += _norm(f"{there}.{theirs}", f"{here}.{ours}", block.norm)
        for name, biased in (("weight", True), ("bias", kind.bias)):
            if biased:
                wide = [kind.heads * kind.width_of_head(D)] * 3
                table.append(split(f"{there}.attn.Wqkv.{name}", [f"{part}.{name}" for part in qkv], wide))
        for name, biased in (("weight", True), ("bias", feedforward.bias)):
            if biased:
                wide = [feedforward.hidden] * 2
                table.append(split(f"{there}.mlp.Wi.{name}", [f"{part}.{name}" for part in opened], wide))
        table += parts.linear(f"{there}.attn.Wo", f"{here}.attention.out", kind.out_bias, kind.bias, D)
        table += parts.linear(f"{there}.mlp.Wo", f"{here}.feedforward.down", feedforward.bias, feedforward.bias, D)
    return table + _head_rules(spec)


def _norm(there: str, here: str, kind: Any) -> list[Rule]:
    """A norm of theirs, which has a bias where ours has one."""
    names = ("weight", "bias") if getattr(kind, "bias", False) else ("weight",)
    return [] if kind is None else [same(f"{there}.{name}", f"{here}.{name}") for name in names]


def _head_rules(spec: TransformerSpec) -> list[Rule]:
    head = spec.head
    if head.kind == "pooled":
        return []
    table = encoders.transform_rules("head.dense", None, spec)
    table += _norm("head.norm", "head.transform.norm", head.transform and head.transform.norm)
    if head.kind in ("classifier", "tokens", "span"):
        return table + encoders.label_rules("classifier")
    if head.bias:
        table.append(same("decoder.bias", "head.bias"))
    return table if head.kind == "tied" else [*table, same("decoder.weight", "head.own.weight")]


FAMILY = Family(
    model_type="modernbert",
    architecture="ModernBertForMaskedLM",
    read=read,
    write=write,
    widen=lambda spec: spec,
    rules=rules,
    prefix="model.",
    tied=r"decoder\.weight",
    unused=(r"decoder\.weight",),
    heads=encoders.heads("ModernBert"),
)
