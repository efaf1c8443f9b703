"""What decoders of one descent have in common: fields of their config.json, and the names of their tensors.

Llama's names became the language of open models; most families are these parts with a few changed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glassformer.checkpoint.families.base import (
    THEIR_ACTIVATION,
    Family,
    Tree,
    activation,
    flag,
    layers_of,
    number,
    size,
)
from glassformer.checkpoint.families.rope import rope_parameters, rotary
from glassformer.checkpoint.rename import Rule, filled, same, split, stacked
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.block import BlockSpec
from glassformer.model.embedding import TiedHeadSpec, UntiedHeadSpec
from glassformer.model.feedforward import ExpertsSpec, GatedSpec
from glassformer.model.mask import CausalSpec, MaskSpec, WindowSpec
from glassformer.model.norm import NormSpec, RMSNormSpec
from glassformer.model.transformer import TransformerSpec

PRE = {"norm1": "input_layernorm", "norm2": "post_attention_layernorm"}
"""The names of the norms before attention and before the feed-forward, in nearly all of them."""


def decoder(config: Tree, block: Callable[[int], BlockSpec], norm: NormSpec, **fields: Any) -> TransformerSpec:
    """A decoder of their sizes whose layers are as `block(index)` says."""
    layers = layers_of(config, "num_hidden_layers")
    tied = flag(config, "tie_word_embeddings", default=False)
    given: dict[str, Any] = {
        "vocabulary": size(config, "vocab_size"),
        "width": size(config, "hidden_size"),
        "context": 2048 if config.get("max_position_embeddings") is None else size(config, "max_position_embeddings"),
        "layers": layers,
        "blocks": pattern([block(index) for index in range(layers)]),
        "norm": norm,
        "head": TiedHeadSpec() if tied else UntiedHeadSpec(),
    }
    return TransformerSpec(**{**given, **fields})


def pattern(blocks: Sequence[BlockSpec]) -> tuple[BlockSpec, ...]:
    """The shortest run of blocks that, repeated, gives them all."""
    for period in range(1, len(blocks)):
        if all(block == blocks[index % period] for index, block in enumerate(blocks)):
            return tuple(blocks[:period])
    return tuple(blocks)


def rms(config: Tree, eps: float = 1e-6, **fields: Any) -> RMSNormSpec:
    """Their RMSNorm."""
    return RMSNormSpec(eps=number(config, "rms_norm_eps", eps), **fields)


def attention(config: Tree, **fields: Any) -> GroupedAttentionSpec:
    """Their grouped attention; fields that are given take the place of what the config says."""
    given: dict[str, Any] = {
        "heads": size(config, "num_attention_heads"),
        "kv_heads": size(config, "num_key_value_heads", "num_attention_heads"),
        "head_width": None if config.get("head_dim") is None else size(config, "head_dim"),
        "dropout": number(config, "attention_dropout") or 0.0,
    }
    if "position" not in fields:
        given["position"] = rotary(config)
    return GroupedAttentionSpec(**{**given, **fields})


def gated(config: Tree, hidden: str = "intermediate_size", act: str = "hidden_act", **fields: Any) -> GatedSpec:
    """Their gated feed-forward."""
    return GatedSpec(hidden=size(config, hidden), activation=activation(config.get(act, "silu")), **fields)


def biased(kind: Any) -> bool:
    """Whether an attention has a bias anywhere."""
    return kind.bias or getattr(kind, "out_bias", False)


def window(config: Tree, on: bool = True) -> MaskSpec:
    """Their sliding window, where there is one and it is on."""
    return (
        WindowSpec(size=size(config, "sliding_window"))
        if on and config.get("sliding_window") is not None
        else CausalSpec()
    )


def layer_kinds(config: Tree, default: Callable[[int], str]) -> list[str]:
    """`layer_types`: which attention each layer has; what their program takes where the config doesn't say."""
    layers = layers_of(config, "num_hidden_layers")
    kinds = config.get("layer_types")
    if kinds is None:
        return [default(index) for index in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ValueError(f"expected layer_types to name the kind of each of {layers} layers, found {str(kinds)[:80]}")
    return kinds


def fields(spec: TransformerSpec) -> dict[str, Any]:
    """The fields that all of them have."""
    block: Any = spec.blocks[0]
    attending, position = block.attention, block.attention.position
    dense: Any = next((b.feedforward for b in spec.blocks if b.feedforward.kind != "experts"), block.feedforward)
    return {
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "intermediate_size": dense.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": attending.heads,
        "num_key_value_heads": getattr(attending, "kv_heads", attending.heads),
        "head_dim": attending.width_of_head(spec.width),
        "hidden_act": THEIR_ACTIVATION[dense.activation],
        "max_position_embeddings": spec.context,
        "rms_norm_eps": getattr(block.norm, "eps", 1e-6),
        "rope_theta": getattr(position, "theta", 10_000.0),
        "rope_parameters": rope_parameters(position),
        "attention_dropout": getattr(attending, "dropout", 0.0),
        "tie_word_embeddings": spec.head.kind == "tied",
    }


def windows(spec: TransformerSpec) -> dict[str, Any]:
    """The fields of models in which some layers have a window."""
    masks = [block.attention.mask for block in spec.each_block()]
    sizes = {mask.size for mask in masks if mask.kind == "window"}
    kinds = ["sliding_attention" if mask.kind == "window" else "full_attention" for mask in masks]
    return {"sliding_window": max(sizes, default=None), "layer_types": kinds}


def wide_norms(spec: TransformerSpec, biased: bool = False) -> TransformerSpec:
    """With a gain (and a bias) at every norm: a gain of one or a bias of zero is none."""

    def wide(norm: Any) -> Any:
        if norm is not None and norm.kind == "rms":
            return norm.replace(gain=True)
        return norm.replace(bias=True) if norm is not None and norm.kind == "layer" and biased else norm

    blocks = []
    for block in spec.blocks:
        blocks.append(
            block.replace(
                norm=wide(block.norm),
                attention=_wide_attention(block.attention, wide),
            )
        )
    return spec.replace(blocks=tuple(blocks), norm=wide(spec.norm))


def _wide_attention(attention: Any, wide: Callable[[Any], Any]) -> Any:
    """Whatever norms its kind has."""
    norms = [name for name in ("norm", "qk_norm") if name in type(attention).model_fields]
    return attention.replace(**{name: wide(getattr(attention, name)) for name in norms}) if norms else attention


# Name tables


def norm(there: str, here: str, kind: Any, width: int) -> list[Rule]:
    """A norm of theirs; a gain or bias that ours doesn't have is exported as the one that changes nothing."""
    if kind is None or kind.kind == "batch":
        return []
    if kind.kind == "rms":
        neutral = 0.0 if kind.unit_offset else 1.0
        return [
            same(f"{there}.weight", f"{here}.weight") if kind.gain else filled(f"{there}.weight", (width,), neutral)
        ]
    bias = same(f"{there}.bias", f"{here}.bias") if kind.bias else filled(f"{there}.bias", (width,), 0.0)
    return [same(f"{there}.weight", f"{here}.weight"), bias]


def linear(there: str, here: str, has_bias: bool, wants_bias: bool, outputs: int) -> list[Rule]:
    """A projection; where they have a bias and we have none, it is exported as zeros."""
    rules = [same(f"{there}.weight", f"{here}.weight")]
    if has_bias:
        rules.append(same(f"{there}.bias", f"{here}.bias"))
    elif wants_bias:
        rules.append(filled(f"{there}.bias", (outputs,), 0.0))
    return rules


def attention_rules(
    there: str, here: str, kind: Any, width: int, wants: tuple[bool, bool] = (False, False), fused: str | None = None
) -> list[Rule]:
    """q, k, v and out; `wants` says whether they have biases at q, k, v and at out, `fused` names q, k and v in one."""
    C = kind.width_of_head(width)
    outputs = {"q": kind.heads * C, "k": kind.kv_heads * C, "v": kind.kv_heads * C}
    rules = linear(f"{there}.o_proj", f"{here}.out", kind.out_bias, wants[1], width)
    if fused is not None:
        rules += [
            split(f"{there}.{fused}.{part}", [f"{here}.{name}.{part}" for name in outputs], list(outputs.values()))
            for part in ("weight", *(("bias",) if kind.bias else ()))
        ]
    else:
        for name, count in outputs.items():
            rules += linear(f"{there}.{name}_proj", f"{here}.{name}", kind.bias, wants[0], count)
    for name in ("q", "k"):
        count = outputs[name] if kind.qk_norm_over == "all" else C
        rules += norm(f"{there}.{name}_norm", f"{here}.{name}_norm", kind.qk_norm, count)
    return rules


def gated_rules(there: str, here: str, kind: Any, *, fused: bool = False) -> list[Rule]:
    """gate, up and down; `fused`: gate and up in one."""
    if fused:
        parts = [f"{here}.gate.weight", f"{here}.up.weight"]
        return [
            split(f"{there}.gate_up_proj.weight", parts, [kind.hidden] * 2),
            same(f"{there}.down_proj.weight", f"{here}.down.weight"),
        ]
    rules = []
    for name in ("gate", "up", "down"):
        rules += linear(f"{there}.{name}_proj", f"{here}.{name}", getattr(kind, "bias", False), False, 0)
    return rules


def expert_rules(
    there: str, here: str, kind: ExpertsSpec, names: Mapping[str, str], shared: str = "shared_experts"
) -> list[Rule]:
    """The router, the experts (`names` are those of gate, up and down) and the shared expert."""
    rules = [same(f"{there}.gate.weight", f"{here}.router.weight")]
    for ours, theirs in names.items():
        each = [f"{there}.experts.{index}.{theirs}.weight" for index in range(kind.experts)]
        rules.append(stacked(each, f"{here}.{ours}.weight"))
    if kind.balance:
        rules.append(same(f"{there}.gate.e_score_correction_bias", f"{here}.balance"))
    if kind.shared is not None:
        rules += gated_rules(f"{there}.{shared}", f"{here}.shared", GatedSpec(hidden=kind.shared))
    if kind.shared_gate:
        rules.append(same(f"{there}.shared_expert_gate.weight", f"{here}.shared_gate.weight"))
    return rules


Layer = Callable[[str, str, BlockSpec], list[Rule]]
"""What a layer has beside its norms, from where it stands there and here."""


def dense_layer(spec: TransformerSpec, wants: Callable[[Any], tuple[bool, bool]] | None = None) -> Layer:
    """A layer of attention and a gated feed-forward; `wants` says which biases their attention has.

    By default these are all or none, as `attention_bias` says.
    """

    def layer(there: str, here: str, block: BlockSpec) -> list[Rule]:
        attention = block.attention
        biases = wants(attention) if wants else (biased(attention), biased(attention))
        return [
            *attention_rules(f"{there}.self_attn", f"{here}.attention", attention, spec.width, biases),
            *gated_rules(f"{there}.mlp", f"{here}.feedforward", block.feedforward),
        ]

    return layer


def mixed_layer(spec: TransformerSpec, wants: Callable[[Any], tuple[bool, bool]] | None = None) -> Layer:
    """A layer of attention and either experts or a gated feed-forward."""
    dense = dense_layer(spec, wants)

    def layer(there: str, here: str, block: BlockSpec) -> list[Rule]:
        feedforward = block.feedforward
        if feedforward.kind != "experts":
            return dense(there, here, block)
        biases = wants(block.attention) if wants else (biased(block.attention), biased(block.attention))
        return [
            *attention_rules(f"{there}.self_attn", f"{here}.attention", block.attention, spec.width, biases),
            *expert_rules(f"{there}.mlp", f"{here}.feedforward", feedforward, EXPERT_NAMES, "shared_expert"),
        ]

    return layer


EXPERT_NAMES = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def decoder_rules(spec: TransformerSpec, layer: Layer, norms: Mapping[str, str] = PRE) -> list[Rule]:
    """The whole table: embedding, each layer's norms and what `layer(there, here, block)` adds, last norm, head."""
    table = [same("model.embed_tokens.weight", "embedding.weight"), *norm("model.norm", "norm", spec.norm, spec.width)]
    for index, block in enumerate(spec.each_block()):
        there, here = f"model.layers.{index}", f"blocks.{index}"
        for ours in block.norms:
            table += norm(f"{there}.{norms.get(ours, ours)}", f"{here}.{ours}", block.norm, spec.width)
        table += layer(there, here, block)
    return table if spec.head.kind == "tied" else [*table, same("lm_head.weight", "head.own.weight")]


# Frequencies that old files carry along, and the head of a tied model, which is the embedding once more.
UNUSED = (r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"lm_head\.weight")


def family(
    model_type: str,
    architecture: str,
    read: Callable[[Tree], TransformerSpec],
    write: Callable[[TransformerSpec], dict[str, Any]],
    rules: Callable[[TransformerSpec], list[Rule]],
    widen: Callable[[TransformerSpec], TransformerSpec] = wide_norms,
) -> Family:
    """A family that speaks Llama's language."""
    return Family(
        model_type=model_type, architecture=architecture, read=read, write=write, widen=widen, rules=rules,
        prefix="model.", unused=UNUSED,
    )  # fmt: skip
