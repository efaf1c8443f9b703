"""RoBERTa: BERT without token types that mean anything, whose first positions belong to padding.

Source: Liu et al. 2019; RobertaForMaskedLM, RobertaModel and its sisters.
"""

from typing import Any

from glassformer.checkpoint.families import bert, encoders
from glassformer.checkpoint.families.base import Family, Tree, number, refuse
from glassformer.checkpoint.rename import Rule
from glassformer.model.embedding import TransformSpec
from glassformer.model.norm import LayerNormSpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    plain = {"position_embedding_type": ("absolute", None), "is_decoder": (False, None)}
    refuse(config, {**plain, "add_cross_attention": (False, None)})
    padding, dropout = number(config, "pad_token_id", 1), number(config, "classifier_dropout")
    norm = LayerNormSpec(eps=number(config, "layer_norm_eps", 1e-12))
    labelled = {
        "dropout": number(config, "hidden_dropout_prob", 0.1) if dropout is None else dropout,
        "transform": bert.POOLER,
    }
    head = encoders.head(config, TransformSpec(norm=norm), encoders.pooler(config, bert.POOLER), labelled)
    if head.kind == "span":
        head = head.replace(transform=None)
    return encoders.post_norm(config, padding + 1, number(config, "type_vocab_size", 2), head)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    return {**bert.write(spec), "pad_token_id": max(0, getattr(spec.position, "unused", 0) - 1)}


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    table, kind = bert.body("roberta", spec), spec.head.kind
    if kind in ("tied", "untied"):
        table += encoders.transform_rules("lm_head.dense", "lm_head.layer_norm", spec)
        return table + encoders.vocabulary_rules("lm_head.bias", "lm_head.decoder", spec)
    if spec.head.transform is not None:
        dense = "roberta.pooler.dense" if kind == "pooled" else "classifier.dense"
        table += encoders.transform_rules(dense, None, spec)
    if kind == "pooled":
        return table
    return table + encoders.label_rules(
        {"span": "qa_outputs", "tokens": "classifier", "classifier": "classifier.out_proj"}[kind]
    )


FAMILY = Family(
    model_type="roberta",
    architecture="RobertaForMaskedLM",
    read=read,
    write=write,
    widen=encoders.widen,
    rules=rules,
    prefix="roberta.",
    tied=r"lm_head\.decoder\.weight",
    unused=(
        r"(roberta\.)?embeddings\.position_ids",
        r"lm_head\.decoder\.(weight|bias)",
        r"(roberta\.)?pooler\.dense\.(weight|bias)",
        r"roberta\.lm_head\..*",
    ),
    heads=encoders.heads("Roberta"),
    settle=encoders.settle,
    old=bert.OLD,
)
