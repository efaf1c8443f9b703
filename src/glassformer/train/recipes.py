"""Recipes: complete runs by name, as functions from the data's vocabulary to a spec; `--set` changes any field."""

from collections.abc import Callable, Mapping

from glassformer.errors import SpecError
from glassformer.model import TransformerSpec
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.block import BlockSpec, PreNormSpec
from glassformer.model.embedding import TokenEmbeddingSpec, UntiedHeadSpec
from glassformer.model.feedforward import ExpertsSpec, MLPSpec
from glassformer.model.norm import RMSNormSpec
from glassformer.model.position import RotarySpec
from glassformer.model.recipes import gpt2 as gpt2_model
from glassformer.model.recipes import llama as llama_model
from glassformer.model.transformer import QuietInitSpec
from glassformer.train.optimizer import AdamWSpec, MuonSpec
from glassformer.train.schedule import CosineSpec, StableDecaySpec
from glassformer.train.spec import TrainSpec

Recipe = Callable[[int], TrainSpec]


def gpt2(vocabulary: int) -> TrainSpec:
    """GPT-2's architecture at a size for two cores: learned positions, LayerNorm, GELU, AdamW with a cosine."""
    return TrainSpec(model=gpt2_model(vocabulary, layers=4, width=128, heads=4, context=128))


def llama(vocabulary: int) -> TrainSpec:
    """Llama's architecture at a size for two cores: rotary positions, RMSNorm, SwiGLU, grouped queries."""
    return TrainSpec(model=llama_model(vocabulary, layers=4, width=128, heads=4, kv_heads=2, context=128))


def experts(vocabulary: int) -> TrainSpec:
    """The small Llama with eight small experts in each layer, of which a token goes through two and a shared one."""
    spec = llama(vocabulary)
    mixture = ExpertsSpec(experts=8, chosen=2, hidden=96, shared=160, balance=True)
    model = spec.model.replace(blocks=(spec.model.blocks[0].replace(feedforward=mixture),))
    return spec.replace(model=model)


def nanogpt_cpu(vocabulary: int) -> TrainSpec:
    """The run that nanoGPT's README suggests for a CPU, for comparison: 0.8M parameters, 2,000 steps, AdamW."""
    model = nanogpt_model(vocabulary, layers=4, width=128, heads=4, context=64)
    return _nanogpt(model).replace(batch_size=12, max_steps=2000)


def nanogpt_baby(vocabulary: int) -> TrainSpec:
    """NanoGPT's 10.65M-parameter character model, for comparison."""
    model = nanogpt_model(vocabulary, layers=6, width=384, heads=6, context=256, dropout=0.2)
    return _nanogpt(model).replace(batch_size=64, micro_batch_size=8, max_steps=5000)


def nanogpt_model(
    vocabulary: int, *, layers: int, width: int, heads: int, context: int, dropout: float = 0.0
) -> TransformerSpec:
    """NanoGPT's architecture: GPT-2's without biases and with the exact GELU (GPT-2 used the tanh approximation)."""
    model = gpt2_model(
        vocabulary, layers=layers, width=width, heads=heads, context=context, bias=False, dropout=dropout
    )
    block = model.blocks[0]
    return model.replace(blocks=(block.replace(feedforward=block.feedforward.replace(activation="gelu")),))


def _nanogpt(model: TransformerSpec) -> TrainSpec:
    return TrainSpec(
        model=model,
        optimizer=AdamWSpec(learning_rate=1e-3, beta2=0.99, weight_decay=0.1),
        schedule=CosineSpec(warmup_steps=100, final=0.1),
    )


def modern(
    vocabulary: int, *, layers: int, width: int, heads: int, context: int, dropout: float = 0.0
) -> TransformerSpec:
    """The small model that learned most per second here: rotary, q/k norm, squared ReLU, RMSNorm, quiet start."""
    norm = RMSNormSpec(gain=False)
    block = BlockSpec(
        attention=GroupedAttentionSpec(heads=heads, kv_heads=heads, position=RotarySpec(), qk_norm=norm),
        feedforward=MLPSpec(hidden=4 * width, activation="relu_squared"),
        norm=norm,
        wiring=PreNormSpec(dropout=dropout),
    )
    return TransformerSpec(
        vocabulary=vocabulary,
        width=width,
        context=context,
        layers=layers,
        embedding=TokenEmbeddingSpec(dropout=dropout),
        blocks=(block,),
        norm=norm,
        head=UntiedHeadSpec(),
        init=QuietInitSpec(embedding=0.5),
    )


def shakespeare(vocabulary: int) -> TrainSpec:
    """Characters of Shakespeare in 80 seconds on two cores."""
    return TrainSpec(
        model=modern(vocabulary, layers=4, width=128, heads=4, context=128),
        optimizer=MuonSpec(),
        schedule=StableDecaySpec(warmup_steps=20, decay=0.5),
        batch_size=12,
        max_steps=100_000,
        max_seconds=75,
        evaluate_every=100_000,
        save_every=100_000,
    )


def shakespeare_best(vocabulary: int) -> TrainSpec:
    """Characters of Shakespeare in 10 minutes on two cores."""
    return TrainSpec(
        model=modern(vocabulary, layers=5, width=256, heads=4, context=512),
        optimizer=MuonSpec(weight_decay=0.02),  # against learning the five epochs by heart
        schedule=StableDecaySpec(warmup_steps=50, decay=0.7),
        batch_size=4,
        max_steps=100_000,
        max_seconds=570,
        compile="auto",
        evaluate_every=100_000,
        save_every=1000,
    )


def demo(vocabulary: int) -> TrainSpec:
    """Some megabytes of any text in two and a half minutes on two cores: what `make demo` trains."""
    return TrainSpec(
        model=modern(vocabulary, layers=4, width=192, heads=6, context=256),
        optimizer=MuonSpec(),
        schedule=StableDecaySpec(warmup_steps=20, decay=0.6),
        batch_size=8,
        max_steps=100_000,
        max_seconds=140,
        evaluate_every=100_000,
        save_every=200,
    )


RECIPES: Mapping[str, Recipe] = {
    "gpt2": gpt2,
    "llama": llama,
    "experts": experts,
    "shakespeare": shakespeare,
    "shakespeare-best": shakespeare_best,
    "demo": demo,
    "nanogpt-cpu": nanogpt_cpu,
    "nanogpt-baby": nanogpt_baby,
}


def recipe(name: str, vocabulary: int) -> TrainSpec:
    """The run called `name`, for data of this vocabulary.

    Raises:
        SpecError: there is no such recipe.
    """
    if name not in RECIPES:
        raise SpecError(f"no recipe {name!r}", where="--recipe", do=f"there are {', '.join(RECIPES)}")
    return RECIPES[name](vocabulary)
