"""The small table: examples of every member of every union, each set into a small model at the place where it belongs.

A new member of a union needs a line here, and a formula in `plain_formula.py`; every contract test then runs on it.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from glassformer.model import Step, Transformer, TransformerSpec
from glassformer.model.attention import AttentionSpec, GroupedAttentionSpec, LatentAttentionSpec, LinearAttentionSpec
from glassformer.model.block import (
    BlockSpec,
    OutputNormSpec,
    ParallelSpec,
    PostNormSpec,
    PreNormSpec,
    SandwichNormSpec,
    WiringSpec,
)
from glassformer.model.embedding import (
    ClassifierHeadSpec,
    EmbeddingSpec,
    HeadSpec,
    PooledHeadSpec,
    SpanHeadSpec,
    TiedHeadSpec,
    TokenClassifierHeadSpec,
    TokenEmbeddingSpec,
    TransformSpec,
    UntiedHeadSpec,
)
from glassformer.model.feedforward import ExpertsSpec, FeedForwardSpec, GatedSpec, MLPSpec
from glassformer.model.mask import BidirectionalSpec, BlocksSpec, CausalSpec, MaskSpec, SinksSpec, WindowSpec
from glassformer.model.norm import BatchNormSpec, LayerNormSpec, NormSpec, RMSNormSpec
from glassformer.model.position import (
    AlibiSpec,
    IntegerSpec,
    LearnedSpec,
    NoPositionSpec,
    PositionSpec,
    RelativeSpec,
    RotarySpec,
    SharedSpec,
    SinusoidalSpec,
)
from glassformer.model.rotary_scaling import (
    LinearScalingSpec,
    Llama3ScalingSpec,
    LongRopeScalingSpec,
    NtkScalingSpec,
    ScalingSpec,
    YarnScalingSpec,
)
from glassformer.model.transformer import InitSpec, NormalInitSpec, QuietInitSpec
from glassformer.spec import Spec, members

B, T, D, H, K, F, V = 2, 7, 16, 4, 2, 24, 29

UNIONS: dict[str, Any] = {
    "position": PositionSpec,
    "scaling": ScalingSpec,
    "norm": NormSpec,
    "feedforward": FeedForwardSpec,
    "wiring": WiringSpec,
    "head": HeadSpec,
    "mask": MaskSpec,
    "init": InitSpec,
    "embedding": EmbeddingSpec,
    "attention": AttentionSpec,
}

SMALL: dict[type[Spec], list[Spec]] = {
    NoPositionSpec: [NoPositionSpec()],
    IntegerSpec: [IntegerSpec(scale=0.1)],
    SinusoidalSpec: [SinusoidalSpec(), SinusoidalSpec(base=50, layout="halves")],
    LearnedSpec: [LearnedSpec(length=12), LearnedSpec(length=13, unused=2)],
    RotarySpec: [RotarySpec(), RotarySpec(theta=50, fraction=0.5), RotarySpec(theta=50, layout="interleaved")],
    AlibiSpec: [AlibiSpec()],
    RelativeSpec: [RelativeSpec(), RelativeSpec(buckets=4, furthest=6)],
    SharedSpec: [SharedSpec()],
    LinearScalingSpec: [LinearScalingSpec(factor=4)],
    NtkScalingSpec: [NtkScalingSpec(factor=4)],
    YarnScalingSpec: [
        YarnScalingSpec(factor=4, original=40),
        YarnScalingSpec(factor=4, original=30, fast=4, slow=0.2, stretched=1.3, whole=False),
    ],
    LongRopeScalingSpec: [
        LongRopeScalingSpec(short=(1, 2), long=(3, 4), original=100, stretched=1.1),
        LongRopeScalingSpec(short=(1, 2), long=(3, 4), original=5),
    ],
    Llama3ScalingSpec: [Llama3ScalingSpec(factor=4, original=20, low=1, high=4)],
    LayerNormSpec: [LayerNormSpec(), LayerNormSpec(bias=False, eps=0.1)],
    RMSNormSpec: [RMSNormSpec(), RMSNormSpec(gain=False, eps=0.1), RMSNormSpec(unit_offset=True)],
    BatchNormSpec: [BatchNormSpec()],
    MLPSpec: [MLPSpec(hidden=F, bias=True), MLPSpec(hidden=F, activation="relu_squared")],
    GatedSpec: [GatedSpec(hidden=F), GatedSpec(hidden=F, activation="gelu_tanh", bias=True)],
    ExpertsSpec: [
        ExpertsSpec(experts=4, chosen=2, hidden=F),
        ExpertsSpec(experts=2, chosen=1, hidden=F, gated=False, activation="relu_squared", normalise=False, shared=5),
        ExpertsSpec(
            experts=6,
            chosen=2,
            hidden=F,
            scores="sigmoid",
            scale=1.5,
            groups=3,
            chosen_groups=2,
            group_by="two best",
            balance=True,
            shared=F,
            shared_gate=True,
        ),
        ExpertsSpec(experts=6, chosen=3, hidden=F, normalise=False, groups=2, chosen_groups=1),
    ],
    PreNormSpec: [
        PreNormSpec(),
        PreNormSpec(scale=0.5),
        PreNormSpec(residual=False),
        PreNormSpec(attention_norm=False),
    ],
    PostNormSpec: [PostNormSpec()],
    OutputNormSpec: [OutputNormSpec()],
    SandwichNormSpec: [SandwichNormSpec()],
    ParallelSpec: [ParallelSpec(), ParallelSpec(one_norm=True, scale=0.7)],
    TiedHeadSpec: [
        TiedHeadSpec(),
        TiedHeadSpec(softcap=5),
        TiedHeadSpec(scale=0.25),
        TiedHeadSpec(bias=True, transform=TransformSpec(norm=LayerNormSpec())),
    ],
    UntiedHeadSpec: [
        UntiedHeadSpec(),
        UntiedHeadSpec(softcap=5),
        UntiedHeadSpec(bias=True, transform=TransformSpec(activation=None, bias=False)),
    ],
    PooledHeadSpec: [
        PooledHeadSpec(),
        PooledHeadSpec(pooling="first", transform=TransformSpec(activation="tanh")),
        PooledHeadSpec(pooling="last", normalise=True),
        PooledHeadSpec(pooling="max"),
    ],
    ClassifierHeadSpec: [
        ClassifierHeadSpec(labels=("a", "b", "c")),
        ClassifierHeadSpec(
            labels=("no", "yes"), pooling="mean", transform=TransformSpec(activation="relu"), bias=False
        ),
    ],
    TokenClassifierHeadSpec: [
        TokenClassifierHeadSpec(labels=tuple("abcd")),
        TokenClassifierHeadSpec(
            labels=tuple("abcd"), bias=False, transform=TransformSpec(bias=False, norm=LayerNormSpec())
        ),
    ],
    SpanHeadSpec: [SpanHeadSpec()],
    CausalSpec: [CausalSpec()],
    WindowSpec: [WindowSpec(size=3), WindowSpec(size=100)],
    SinksSpec: [SinksSpec(size=2, first=1)],
    BlocksSpec: [BlocksSpec(size=2, local=1, first=1), BlocksSpec(size=1, local=2, first=0, stride=3)],
    BidirectionalSpec: [BidirectionalSpec(), BidirectionalSpec(window=3)],
    NormalInitSpec: [NormalInitSpec(), NormalInitSpec(std=0.3)],
    QuietInitSpec: [QuietInitSpec(), QuietInitSpec(embedding=0.5, gain=2, head=0.1)],
    TokenEmbeddingSpec: [TokenEmbeddingSpec(), TokenEmbeddingSpec(scale=2, types=1, norm=RMSNormSpec())],
    GroupedAttentionSpec: [
        GroupedAttentionSpec(heads=H, kv_heads=H),
        GroupedAttentionSpec(heads=H, kv_heads=1, qk_norm=RMSNormSpec()),
        GroupedAttentionSpec(heads=H, kv_heads=K, bias=True, out_bias=True, position=RotarySpec()),
        GroupedAttentionSpec(heads=3, kv_heads=1, head_width=6, scale=0.2, position=RotarySpec()),
        GroupedAttentionSpec(heads=H, kv_heads=K, position=AlibiSpec(), mask=WindowSpec(size=4)),
        GroupedAttentionSpec(heads=H, kv_heads=K, position=RotarySpec(), mask=BidirectionalSpec()),
        GroupedAttentionSpec(heads=H, kv_heads=K, qk_norm=RMSNormSpec(), qk_norm_over="all", position=RotarySpec()),
        GroupedAttentionSpec(heads=H, kv_heads=K, softcap=0.5, position=AlibiSpec()),
        GroupedAttentionSpec(heads=H, kv_heads=1, sink=True, gate=True, mask=WindowSpec(size=3)),
    ],
    LatentAttentionSpec: [
        LatentAttentionSpec(heads=3, rank=7, head_width=5, turned=4, value_width=6),
        LatentAttentionSpec(
            heads=2,
            rank=9,
            query_rank=8,
            head_width=4,
            turned=2,
            value_width=3,
            bias=True,
            scale=0.5,
            position=RotarySpec(theta=50, layout="interleaved"),
            mask=WindowSpec(size=3),
        ),
        LatentAttentionSpec(heads=2, rank=6, head_width=4, turned=2, value_width=8, mask=BidirectionalSpec()),
    ],
    LinearAttentionSpec: [
        LinearAttentionSpec(heads=H),
        LinearAttentionSpec(heads=3, head_width=5, value_width=6, decay=True, bias=True, out_bias=True),
        LinearAttentionSpec(heads=H, mask=BidirectionalSpec()),
        LinearAttentionSpec(heads=2, mask=BidirectionalSpec(), decay=True),
    ],
}


def base() -> TransformerSpec:
    """The small model that an example is set into."""
    attention = GroupedAttentionSpec(heads=H, kv_heads=K)
    block = BlockSpec(attention=attention, feedforward=MLPSpec(hidden=F, activation="silu"))
    return TransformerSpec(vocabulary=V, width=D, context=12, layers=2, blocks=(block,))


def with_block(spec: TransformerSpec, **changes: Any) -> TransformerSpec:
    return spec.replace(blocks=(spec.blocks[0].replace(**changes),))


def with_attention(spec: TransformerSpec, **changes: Any) -> TransformerSpec:
    return with_block(spec, attention=spec.blocks[0].attention.replace(**changes))


def sharing(spec: TransformerSpec, position: Spec) -> TransformerSpec:
    """The model with one position for all its attentions."""
    block = spec.blocks[0].replace(attention=spec.blocks[0].attention.replace(position=SharedSpec()))
    return spec.replace(blocks=(block,), position=position)


def model_with(union: str, example: Any) -> TransformerSpec:
    """The small model with this part in its place; a norm stands at every norm that there is."""
    spec = base()
    if union == "position":
        if example.kind == "shared":
            return sharing(spec, RelativeSpec())
        inside = {"rotate", "bias"} & set(example.acts)
        return with_attention(spec, position=example) if inside else spec.replace(position=example)
    if union == "norm":
        # Without a rotation the bias of a key's norm moves all scores of a query alike, and softmax doesn't see it.
        attending = with_attention(with_block(spec, norm=example), qk_norm=example, position=RotarySpec())
        return attending.replace(norm=example)
    if union == "scaling":
        return with_attention(spec, position=RotarySpec(theta=50, scaling=example))
    if union == "mask":
        return with_attention(spec, mask=example)
    if union == "head" and hasattr(example, "pooling"):  # the first token of a causal model has seen itself alone
        return with_attention(spec, mask=BidirectionalSpec()).replace(head=example)
    if union in ("attention", "feedforward", "wiring"):
        return with_block(spec, **{union: example})
    return spec.replace(**{union: example})


def examples(union: str) -> list[Spec]:
    return [example for member in members(UNIONS[union]) for example in SMALL.get(member, [])]


def all_models() -> dict[str, TransformerSpec]:
    """Every example in its model, by a name for the test report."""
    return {
        f"{union}-{example.model_dump()['kind']}-{index}": model_with(union, example)
        for union in UNIONS
        for index, example in enumerate(examples(union))
    }


MODELS = all_models()
PER_TOKEN = [name for name, spec in MODELS.items() if "T" in spec.head.logits.split()]
"""Models whose head gives something for each token; the others give one vector for a row."""
CAUSAL = [name for name in PER_TOKEN if MODELS[name].blocks[0].attention.mask.kind != "bidirectional"]


@cache
def random_model(name: str) -> Transformer:
    """The model of an example, shared by its tests."""
    return randomised(MODELS[name])


def randomised(spec: TransformerSpec, seed: int = 0) -> Transformer:
    """A model in which no weight is zero or one, so that nothing is hidden; it is in evaluation mode."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = spec.build().eval()
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.3)
    return model


def some_tokens(rows: int = B, length: int = T, seed: int = 1) -> Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


def logits_of(model: Transformer, tokens: Tensor, step: Step | None = None) -> Tensor:
    with torch.no_grad():
        return model(tokens, step or Step.whole(tokens))
