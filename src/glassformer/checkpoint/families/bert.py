"""BERT, and MiniLM: an encoder with learned positions, token types, LayerNorm after each part, biases everywhere.

Source: Devlin et al. 2019; BertForMaskedLM, BertModel and its sisters.
"""

from typing import Any

from glassformer.checkpoint.families import encoders, parts
from glassformer.checkpoint.families.base import Family, Tree, number, refuse
from glassformer.checkpoint.rename import Rule, same
from glassformer.model.embedding import TransformSpec
from glassformer.model.norm import LayerNormSpec
from glassformer.model.transformer import TransformerSpec

NAMES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "out": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm2": "output.LayerNorm",
}
POOLER = TransformSpec(activation="tanh")
OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    plain = {"position_embedding_type": ("absolute", None), "is_decoder": (False, None)}
    refuse(config, {**plain, "add_cross_attention": (False, None)})
    norm = LayerNormSpec(eps=number(config, "layer_norm_eps", 1e-12))
    masked = TransformSpec(activation=encoders.activation(config.get("hidden_act", "gelu")), norm=norm)
    dropout = number(config, "classifier_dropout")
    labelled = {
        "dropout": number(config, "hidden_dropout_prob", 0.1) if dropout is None else dropout,
        "transform": POOLER,
    }
    types = number(config, "type_vocab_size", 2)
    head = encoders.head(config, masked, encoders.pooler(config, POOLER), labelled)
    if head.kind == "span":  # which reads the tokens as they are
        head = head.replace(transform=None)
    return encoders.post_norm(config, 0, types, head)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    return {**encoders.post_norm_fields(spec), **encoders.sentence_fields(spec, POOLER)}


def body(prefix: str, spec: TransformerSpec) -> list[Rule]:
    """The name table of all but the head."""
    table = [
        same(f"{prefix}.embeddings.word_embeddings.weight", "embedding.weight"),
        *(
            [same(f"{prefix}.embeddings.token_type_embeddings.weight", "embedding.types")]
            if spec.embedding.types
            else []
        ),
        same(f"{prefix}.embeddings.position_embeddings.weight", "position.table"),
        *parts.norm(f"{prefix}.embeddings.LayerNorm", "embedding_norm", spec.embedding.norm, spec.width),
    ]
    for index in range(spec.layers):
        table += encoders.block_rules(f"{prefix}.encoder.layer.{index}", f"blocks.{index}", NAMES, spec)
    return table


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    table, kind = body("bert", spec), spec.head.kind
    if kind in ("tied", "untied"):
        there = "cls.predictions"
        table += encoders.transform_rules(f"{there}.transform.dense", f"{there}.transform.LayerNorm", spec)
        return table + encoders.vocabulary_rules(f"{there}.bias", f"{there}.decoder", spec)
    if spec.head.transform is not None:
        table += encoders.transform_rules("bert.pooler.dense", None, spec)
    if kind == "pooled":
        return table
    return table + encoders.label_rules("qa_outputs" if kind == "span" else "classifier")


FAMILY = Family(
    model_type="bert",
    architecture="BertForMaskedLM",
    read=read,
    write=write,
    widen=encoders.widen,
    rules=rules,
    prefix="bert.",
    # Numbers that old files carry along; a tied matrix once more; heads of pretraining that no task reads.
    tied=r"cls\.predictions\.decoder\.weight",
    unused=(
        r"(bert\.)?embeddings\.position_ids",
        r"cls\.predictions\.decoder\.(weight|bias)",
        r"cls\.seq_relationship\.(weight|bias)",
        r"(bert\.)?pooler\.dense\.(weight|bias)",
        r"bert\.cls\..*",
    ),
    heads=encoders.heads("Bert"),
    settle=encoders.settle,
    old=OLD,
)
