"""BART: an encoder-decoder with learned positions and a norm after the embedding.

Source: Lewis et al. 2020; BartForConditionalGeneration.
"""

from typing import Any

from glassformer.checkpoint.families import seq2seq
from glassformer.checkpoint.families.base import Family, Tree, size
from glassformer.checkpoint.rename import Rule, same
from glassformer.model.norm import LayerNormSpec
from glassformer.model.position import LearnedSpec
from glassformer.model.transformer import TransformerSpec

UNUSED_ROWS = 2  # of the table of positions, for padding that is never read


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    position = LearnedSpec(length=size(config, "max_position_embeddings"), unused=UNUSED_ROWS)
    return seq2seq.read(config, position, LayerNormSpec())


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    return {**seq2seq.write(spec), "max_position_embeddings": spec.position.limit or spec.context}


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    return [
        *seq2seq.rules(spec),
        same("model.decoder.embed_positions.weight", "position.table"),
        same("model.encoder.embed_positions.weight", "encoder.position.table"),
    ]


FAMILY = Family(
    model_type="bart",
    architecture="BartForConditionalGeneration",
    read=read,
    write=write,
    widen=seq2seq.widen,
    rules=rules,
    prefix="model.",
    unused=seq2seq.UNUSED,
)
