"""Qwen3's mixtures of experts: its attention, and small gated experts in some layers. Source: Qwen3MoeForCausalLM."""

from typing import Any

from glassformer.checkpoint.families import llama, parts, qwen3
from glassformer.checkpoint.families.base import Tree, activation, flag, listed, size
from glassformer.checkpoint.rename import Rule
from glassformer.model.block import BlockSpec
from glassformer.model.feedforward import ExpertsSpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    norm = parts.rms(config)
    biased = flag(config, "attention_bias", default=False)
    mask = parts.window(config, on=flag(config, "use_sliding_window", default=False))
    attention = parts.attention(config, mask=mask, qk_norm=norm, bias=biased, out_bias=biased)
    mixture = experts(config)

    def block(index: int) -> BlockSpec:
        feedforward = mixture if has_experts(config, index) else parts.gated(config)
        return BlockSpec(attention=attention, feedforward=feedforward, norm=norm)

    return parts.decoder(config, block, norm)


def has_experts(config: Tree, index: int) -> bool:
    """Whether a layer is a mixture: every `decoder_sparse_step`-th, but those that are listed as plain."""
    every = size({"decoder_sparse_step": 1, **config}, "decoder_sparse_step")
    return index not in listed(config, "mlp_only_layers") and (index + 1) % every == 0


def experts(config: Tree, **fields: Any) -> ExpertsSpec:
    """Their mixture."""
    return ExpertsSpec(
        experts=size(config, "num_local_experts", "num_experts"),
        chosen=size(config, "num_experts_per_tok"),
        hidden=size(config, "moe_intermediate_size"),
        activation=activation(config.get("hidden_act", "silu")),
        normalise=flag(config, "norm_topk_prob", default=False),
        **fields,
    )


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    return {**qwen3.write(spec), **mixture_fields(spec)}


def mixture_fields(spec: TransformerSpec) -> dict[str, Any]:
    """The fields of the mixture, and which layers are none."""
    kinds = [block.feedforward for block in spec.each_block()]
    mixture = next((kind for kind in kinds if kind.kind == "experts"), None)
    return {
        "num_experts": mixture.experts if mixture else 1,
        "num_experts_per_tok": mixture.chosen if mixture else 1,
        "moe_intermediate_size": mixture.hidden if mixture else 1,
        "norm_topk_prob": mixture.normalise if mixture else False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [index for index, kind in enumerate(kinds) if kind.kind != "experts"],
    }


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    return parts.decoder_rules(spec, parts.mixed_layer(spec))


FAMILY = parts.family("qwen3_moe", "Qwen3MoeForCausalLM", read, write, rules, widen=llama.widen)
