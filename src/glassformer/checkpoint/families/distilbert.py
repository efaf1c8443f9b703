"""DistilBERT: BERT's block under other names, without token types and without a pooler.

Source: Sanh et al. 2019; DistilBertForMaskedLM, DistilBertModel and its sisters.
"""

from typing import Any

from glassformer.checkpoint.families import encoders, parts
from glassformer.checkpoint.families.base import Family, Tree, activation, number, size
from glassformer.checkpoint.rename import Rule, same
from glassformer.model.embedding import TransformSpec
from glassformer.model.norm import LayerNormSpec
from glassformer.model.transformer import TransformerSpec

NAMES = {
    "q": "attention.q_lin",
    "k": "attention.k_lin",
    "v": "attention.v_lin",
    "out": "attention.out_lin",
    "norm1": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "norm2": "output_layer_norm",
}
FIELDS = {
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
"""BERT's fields of the config by what they are called here."""


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    for name in ("dim", "hidden_dim", "n_layers", "n_heads"):
        size(config, name)  # complains of the name that stands there, not of BERT's
    for name in ("dropout", "attention_dropout"):
        number(config, name)
    named = {**config, **{bert: config[ours] for bert, ours in FIELDS.items() if ours in config}}
    norm, act = LayerNormSpec(eps=1e-12), activation(config.get("activation", "gelu"))
    labelled = {"transform": TransformSpec(activation="relu"), "dropout": number(config, "seq_classif_dropout", 0.2)}
    head = encoders.head(config, TransformSpec(activation=act, norm=norm), None, labelled)
    if head.kind == "span":
        head = head.replace(transform=None, dropout=number(config, "qa_dropout", 0.1))
    return encoders.post_norm({**named, "layer_norm_eps": 1e-12}, 0, 0, head)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    fields = encoders.post_norm_fields(spec)
    left = ("type_vocab_size", "layer_norm_eps")
    named = {FIELDS.get(name, name): value for name, value in fields.items() if name not in left}
    return {**named, **encoders.sentence_fields(spec)}


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    table = [
        same("distilbert.embeddings.word_embeddings.weight", "embedding.weight"),
        same("distilbert.embeddings.position_embeddings.weight", "position.table"),
        *parts.norm("distilbert.embeddings.LayerNorm", "embedding_norm", spec.embedding.norm, spec.width),
    ]
    for index in range(spec.layers):
        table += encoders.block_rules(f"distilbert.transformer.layer.{index}", f"blocks.{index}", NAMES, spec)
    kind = spec.head.kind
    if kind in ("tied", "untied"):
        table += encoders.transform_rules("vocab_transform", "vocab_layer_norm", spec)
        table.append(same("vocab_projector.bias", "head.bias"))
        return table if kind == "tied" else [*table, same("vocab_projector.weight", "head.own.weight")]
    if kind == "pooled":
        return table
    if spec.head.transform is not None:
        table += encoders.transform_rules("pre_classifier", None, spec)
    return table + encoders.label_rules("qa_outputs" if kind == "span" else "classifier")


FAMILY = Family(
    model_type="distilbert",
    architecture="DistilBertForMaskedLM",
    read=read,
    write=write,
    widen=encoders.widen,
    rules=rules,
    prefix="distilbert.",
    tied=r"vocab_projector\.weight",
    unused=(r"(distilbert\.)?embeddings\.position_ids", r"vocab_projector\.weight"),
    heads=encoders.heads("DistilBert"),
)
