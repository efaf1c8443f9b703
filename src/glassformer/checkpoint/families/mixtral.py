"""Mixtral: Mistral with eight gated experts in each layer, of which every token visits two.

Source: Jiang et al. 2024; MixtralForCausalLM.
"""

from typing import Any

from glassformer.checkpoint.families import parts
from glassformer.checkpoint.families.base import THEIR_ACTIVATION, Tree, activation, size
from glassformer.checkpoint.families.rope import rotary
from glassformer.checkpoint.rename import Rule
from glassformer.model.block import BlockSpec
from glassformer.model.feedforward import ExpertsSpec
from glassformer.model.transformer import TransformerSpec

NAMES = {"gate": "w1", "up": "w3", "down": "w2"}


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    norm = parts.rms(config, eps=1e-5)
    block = BlockSpec(
        attention=parts.attention(config, mask=parts.window(config), position=rotary(config, theta=1e6)),
        feedforward=ExpertsSpec(
            experts=size(config, "num_local_experts"),
            chosen=size(config, "num_experts_per_tok"),
            hidden=size(config, "intermediate_size"),
            activation=activation(config.get("hidden_act", "silu")),
        ),
        norm=norm,
    )
    return parts.decoder(config, lambda index: block, norm)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    mixture: Any = spec.blocks[0].feedforward
    return {
        **parts.fields(spec),
        "sliding_window": parts.windows(spec)["sliding_window"],
        "num_local_experts": getattr(mixture, "experts", 1),
        "num_experts_per_tok": getattr(mixture, "chosen", 1),
        "hidden_act": THEIR_ACTIVATION[mixture.activation],
    }


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""

    def layer(there: str, here: str, block: BlockSpec) -> list[Rule]:
        assert block.feedforward.kind == "experts"
        return [
            *parts.attention_rules(f"{there}.self_attn", f"{here}.attention", block.attention, spec.width),
            *parts.expert_rules(f"{there}.block_sparse_moe", f"{here}.feedforward", block.feedforward, NAMES),
        ]

    return parts.decoder_rules(spec, layer)


FAMILY = parts.family("mixtral", "MixtralForCausalLM", read, write, rules)
