"""What encoders have in common: the heads that an architecture's name tells, BERT's block, and the tables of both.

BERT's block came first, and most encoders are that block under other names.
"""

from collections.abc import Collection, Mapping
from typing import Any

from glassformer.checkpoint.families import parts
from glassformer.checkpoint.families.base import (
    THEIR_ACTIVATION,
    Tree,
    activation,
    flag,
    layers_of,
    number,
    size,
    with_bias,
    with_biases,
)
from glassformer.checkpoint.rename import Rule, filled, same
from glassformer.errors import CheckpointError
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.block import BlockSpec, PostNormSpec
from glassformer.model.embedding import (
    ClassifierHeadSpec,
    HeadSpec,
    PooledHeadSpec,
    SpanHeadSpec,
    TiedHeadSpec,
    TokenClassifierHeadSpec,
    TokenEmbeddingSpec,
    TransformSpec,
    UntiedHeadSpec,
)
from glassformer.model.feedforward import MLPSpec
from glassformer.model.mask import BidirectionalSpec
from glassformer.model.norm import LayerNormSpec
from glassformer.model.position import LearnedSpec
from glassformer.model.transformer import TransformerSpec

TASKS = {
    "ForMaskedLM": "masked",
    "ForPreTraining": "masked",
    "ForSequenceClassification": "classifier",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "span",
    "Model": "pooled",
}
"""What a model is for, by how the name of its architecture ends."""

SENTENCES = "sentence_transformers"
"""Where a config says how the vectors of sentences are made, of a folder that has been made for them."""

LONGEST = "max_seq_length"
"""The most tokens of a sentence, where that is fewer than the model has positions for."""


POOLS = "add_pooling_layer"


def heads(name: str) -> dict[str, str]:
    """The architectures of a family by our kind of head."""
    return {
        "tied": f"{name}ForMaskedLM",
        "untied": f"{name}ForMaskedLM",
        "pooled": f"{name}Model",
        "classifier": f"{name}ForSequenceClassification",
        "tokens": f"{name}ForTokenClassification",
        "span": f"{name}ForQuestionAnswering",
    }


def task(config: Tree) -> str:
    """What a model is for: "masked" (also where no architecture is named), "classifier", "tokens", "span", "pooled"."""
    named = config.get("architectures") or ["ForMaskedLM"]
    for ending, kind in TASKS.items():
        if isinstance(named, list) and isinstance(named[0], str) and named[0].endswith(ending):
            return kind
    raise CheckpointError(f"architecture {str(named)[:80]} is not known (known: …{', …'.join(TASKS)})")


def head(config: Tree, masked: TransformSpec, pooler: TransformSpec | None, classifier: Tree | None = None) -> HeadSpec:
    """The head that the architecture's name tells.

    `masked` comes before the vocabulary, `pooler` before the vector of a text; `classifier` are fields for labels.
    """
    kind, fields = task(config), dict(classifier or {})
    if kind == "masked":
        tied = flag(config, "tie_word_embeddings", default=True)
        return TiedHeadSpec(bias=True, transform=masked) if tied else UntiedHeadSpec(bias=True, transform=masked)
    if kind == "pooled":
        return PooledHeadSpec(**sentences) if (sentences := config.get(SENTENCES)) else _pooled(pooler)
    if kind == "span":
        return SpanHeadSpec(**{name: value for name, value in fields.items() if name in SpanHeadSpec.model_fields})
    if kind == "classifier":
        return ClassifierHeadSpec(labels=labels(config), **fields)
    return TokenClassifierHeadSpec(labels=labels(config), **{k: v for k, v in fields.items() if k == "dropout"})


def settle(config: Tree, names: Collection[str]) -> Tree:
    """Whether a bare model was made with its pooler: only its tensors say so."""
    if task(config) != "pooled" or any(name.endswith("pooler.dense.weight") for name in names):
        return config
    return {**config, POOLS: False}


def pooler(config: Tree, usual: TransformSpec) -> TransformSpec | None:
    """What makes the vector of a text out of its first token, in a model that has it."""
    return usual if flag(config, POOLS, default=True) else None


def _pooled(pooler: TransformSpec | None) -> PooledHeadSpec:
    """The vector of the first token where the model was trained to make one, else the mean."""
    return PooledHeadSpec(pooling="first", transform=pooler) if pooler else PooledHeadSpec()


def labels(config: Tree) -> tuple[str, ...]:
    """The labels' names, in order."""
    named = config.get("id2label")
    if isinstance(named, dict) and named:
        return tuple(str(named[key]) for key in sorted(named, key=int))
    count = number(config, "num_labels", 2)
    if type(count) is not int or not 1 <= count < 2**20:
        raise CheckpointError(f"expected num_labels to be a positive number, found {str(count)[:80]}")
    return tuple(f"LABEL_{index}" for index in range(count))


def label_fields(spec: TransformerSpec) -> dict[str, Any]:
    """The labels as their config has them."""
    head = spec.head
    if not isinstance(head, ClassifierHeadSpec | TokenClassifierHeadSpec):
        return {}
    return {
        "id2label": {str(index): name for index, name in enumerate(head.labels)},
        "label2id": {name: index for index, name in enumerate(head.labels)},
    }


def sentence_fields(spec: TransformerSpec, pooler: TransformSpec | None = None) -> dict[str, Any]:
    """How vectors of sentences are made, where it isn't by the `pooler` that the architecture has itself."""
    if spec.head.kind != "pooled" or (pooler is not None and spec.head == _pooled(pooler)):
        return {}
    return {SENTENCES: spec.head.model_dump(mode="json", exclude={"kind"})}


def post_norm(config: Tree, unused: int, types: int, head: HeadSpec) -> TransformerSpec:
    """An encoder as BERT is: learned positions (`unused` rows come first), LayerNorm last, biases everywhere."""
    norm = LayerNormSpec(eps=number(config, "layer_norm_eps", 1e-12))
    heads, dropout = size(config, "num_attention_heads"), number(config, "hidden_dropout_prob", 0.1)
    block = BlockSpec(
        attention=GroupedAttentionSpec(
            heads=heads, kv_heads=heads, bias=True, out_bias=True, mask=BidirectionalSpec(),
            dropout=number(config, "attention_probs_dropout_prob", 0.1),
        ),
        feedforward=MLPSpec(
            hidden=size(config, "intermediate_size"), bias=True, activation=activation(config.get("hidden_act", "gelu"))
        ),
        norm=norm,
        wiring=PostNormSpec(dropout=dropout),
    )  # fmt: skip
    length = size(config, "max_position_embeddings") - unused
    longest = size(config, LONGEST) if config.get(LONGEST) else length
    return TransformerSpec(
        vocabulary=size(config, "vocab_size"),
        width=size(config, "hidden_size"),
        context=min(length, longest),
        layers=layers_of(config, "num_hidden_layers"),
        embedding=TokenEmbeddingSpec(types=types, norm=norm, dropout=dropout),
        position=LearnedSpec(length=length, unused=unused),
        blocks=(block,),
        norm=None,
        head=head,
    )


def post_norm_fields(spec: TransformerSpec) -> dict[str, Any]:
    """What their config says of such a model."""
    block: Any = spec.blocks[0]
    position = spec.position
    return {
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.feedforward.hidden,
        "hidden_act": THEIR_ACTIVATION.get(block.feedforward.activation, "gelu"),
        "hidden_dropout_prob": block.wiring.dropout,
        "attention_probs_dropout_prob": getattr(block.attention, "dropout", 0.0),
        "max_position_embeddings": (position.limit or spec.context) + getattr(position, "unused", 0),
        "type_vocab_size": spec.embedding.types,
        "layer_norm_eps": block.norm.eps,
        "tie_word_embeddings": spec.head.kind != "untied",
        **label_fields(spec),
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
    return spec.replace(blocks=blocks, embedding=spec.embedding.replace(norm=with_bias(spec.embedding.norm)))


# Name tables

Names = Mapping[str, str]


def block_rules(there: str, here: str, names: Names, spec: TransformerSpec) -> list[Rule]:
    """A block of post-norm attention and feed-forward; `names`: what they call q, k, v, out, norm1, up, down, norm2."""
    block, D = spec.blocks[0], spec.width
    kind: Any = block.attention
    feedforward: Any = block.feedforward
    table: list[Rule] = []
    for part in ("q", "k", "v", "out"):
        biased = kind.out_bias if part == "out" else kind.bias
        table += parts.linear(f"{there}.{names[part]}", f"{here}.attention.{part}", biased, True, D)
    for part, outputs in (("up", feedforward.hidden), ("down", D)):
        table += parts.linear(f"{there}.{names[part]}", f"{here}.feedforward.{part}", feedforward.bias, True, outputs)
    for part in ("norm1", "norm2"):
        table += parts.norm(f"{there}.{names[part]}", f"{here}.{part}", block.norm, D)
    return table


def transform_rules(dense: str, norm: str | None, spec: TransformerSpec) -> list[Rule]:
    """The layer before the scores, by what they call its projection and its norm."""
    kind, here = spec.head.transform, "head.transform"
    assert kind is not None, "a head without a transform has no names for it"
    table = parts.linear(dense, f"{here}.dense", kind.bias, kind.bias, spec.width)
    if norm is not None and kind.norm is not None:
        table += parts.norm(norm, f"{here}.norm", kind.norm, spec.width)
    return table


def vocabulary_rules(bias: str, decoder: str, spec: TransformerSpec) -> list[Rule]:
    """The scores of the vocabulary: a tied head has its bias apart, one of its own beside its matrix."""
    if spec.head.kind == "tied":
        return [same(bias, "head.bias")]
    unread = filled(bias, (spec.vocabulary,), 0.0)
    return [same(f"{decoder}.weight", "head.own.weight"), same(f"{decoder}.bias", "head.bias"), unread]


def label_rules(there: str) -> list[Rule]:
    """The projection to the labels."""
    return [same(f"{there}.weight", "head.labels.weight"), same(f"{there}.bias", "head.labels.bias")]
