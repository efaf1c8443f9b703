"""Marian: encoder-decoders for translation, with sines and cosines for positions (OPUS-MT's models are these).

Source: Junczys-Dowmunt et al. 2018; MarianMTModel.
"""

from typing import Any

from glassformer.checkpoint.families import seq2seq
from glassformer.checkpoint.families.base import Family, Tree, refuse, size
from glassformer.model.position import SinusoidalSpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    refuse(
        config,
        {
            "share_encoder_decoder_embeddings": (True, None),
            "static_position_embeddings": (True, None),
            "normalize_embedding": (False, None),
            "decoder_vocab_size": (None, size(config, "vocab_size")),
        },
    )
    return seq2seq.read(config, SinusoidalSpec(layout="halves"), None)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    return {**seq2seq.write(spec), "decoder_vocab_size": spec.vocabulary, "share_encoder_decoder_embeddings": True}


FAMILY = Family(
    model_type="marian",
    architecture="MarianMTModel",
    read=read,
    write=write,
    widen=seq2seq.widen,
    rules=seq2seq.rules,
    prefix="model.",
    # The shared token vectors under their other names, and positions that are computed.
    unused=(*seq2seq.UNUSED, r"model\.(en|de)coder\.embed_positions\.weight"),
)
