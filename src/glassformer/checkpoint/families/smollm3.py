"""SmolLM3: Llama's parts, with every fourth layer left without positions. Source: SmolLM3ForCausalLM."""

from typing import Any

from glassformer.checkpoint.families import llama, parts
from glassformer.checkpoint.families.base import Tree, flag
from glassformer.checkpoint.families.rope import rotary
from glassformer.model.block import BlockSpec
from glassformer.model.position import NoPositionSpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    norm, biased = parts.rms(config), flag(config, "attention_bias", default=False)
    turns = _turns(config)
    on = flag(config, "use_sliding_window", default=False)
    kinds = parts.layer_kinds(config, lambda i: "full_attention" if turns[i] or not on else "sliding_attention")

    def block(index: int) -> BlockSpec:
        return BlockSpec(
            attention=parts.attention(
                config,
                mask=parts.window(config, on=kinds[index] == "sliding_attention"),
                position=rotary(config) if turns[index] else NoPositionSpec(),
                bias=biased,
                out_bias=biased,
            ),
            feedforward=parts.gated(config, bias=flag(config, "mlp_bias", default=False)),
            norm=norm,
        )

    return parts.decoder({"tie_word_embeddings": True, **config}, block, norm)


def _turns(config: Tree) -> list[bool]:
    layers, listed = parts.layers_of(config, "num_hidden_layers"), config.get("no_rope_layers")
    if listed is None:
        every = parts.size({"no_rope_layer_interval": 4, **config}, "no_rope_layer_interval")
        return [(index + 1) % every != 0 for index in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers:
        raise ValueError(f"expected no_rope_layers to have {layers} items, found {str(listed)[:80]}")
    return [bool(item) for item in listed]


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    windows, attention = parts.windows(spec), [block.attention for block in spec.each_block()]
    turned = next((kind.position for kind in attention if kind.position.kind == "rotary"), NoPositionSpec())
    return {
        **parts.fields(spec),
        **windows,
        "rope_theta": getattr(turned, "theta", 10_000.0),
        "rope_parameters": parts.rope_parameters(turned),
        "use_sliding_window": windows["sliding_window"] is not None,
        "no_rope_layers": [int(kind.position.kind == "rotary") for kind in attention],
        "attention_bias": parts.biased(attention[0]),
        "mlp_bias": getattr(spec.blocks[0].feedforward, "bias", False),
    }


FAMILY = parts.family("smollm3", "SmolLM3ForCausalLM", read, write, llama.rules, widen=llama.widen)
