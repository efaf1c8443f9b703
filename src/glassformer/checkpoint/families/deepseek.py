"""DeepSeek-V2 and V3: latent attention, and many small experts beside a shared one, after a few dense layers.

V3 scores experts with a sigmoid, and balances them by a bias that only decides the choice.
Sources: DeepSeek-AI 2024a, b; DeepseekV2ForCausalLM, DeepseekV3ForCausalLM.
"""

from typing import Any

from glassformer.checkpoint.families import parts
from glassformer.checkpoint.families.base import Tree, activation, flag, number, refuse, size
from glassformer.checkpoint.families.rope import facts, mscale, rope_parameters, rotary
from glassformer.checkpoint.rename import Rule, same
from glassformer.model.attention import LatentAttentionSpec
from glassformer.model.block import BlockSpec
from glassformer.model.feedforward import ExpertsSpec
from glassformer.model.norm import RMSNormSpec
from glassformer.model.transformer import TransformerSpec


def read_v2(config: Tree) -> TransformerSpec:
    """A config of V2 as a spec."""
    refuse(
        config,
        {"norm_topk_prob": (False, None), "topk_method": ("greedy", "group_limited_greedy"), "mlp_bias": (False,)},
    )
    limited = config.get("topk_method") == "group_limited_greedy"
    return _read(config, _experts(config, limited, scores="softmax", normalise=False))


def read_v3(config: Tree) -> TransformerSpec:
    """A config of V3 as a spec."""
    refuse(config, {"topk_method": ("noaux_tc",), "scoring_func": ("sigmoid",)})
    mixture = _experts(
        config,
        True,
        scores="sigmoid",
        normalise=flag(config, "norm_topk_prob", default=True),
        group_by="two best",
        balance=True,
    )
    return _read({"routed_scaling_factor": 2.5, **config}, mixture)


def _read(config: Tree, mixture: ExpertsSpec) -> TransformerSpec:
    norm = parts.rms(config)
    attention = _attention(config)

    def block(index: int) -> BlockSpec:
        dense = index < (number(config, "first_k_dense_replace") or 0)
        return BlockSpec(attention=attention, feedforward=parts.gated(config) if dense else mixture, norm=norm)

    return parts.decoder(config, block, norm)


def _attention(config: Tree) -> LatentAttentionSpec:
    plain, turned = size(config, "qk_nope_head_dim"), size(config, "qk_rope_head_dim")
    known = facts(config)
    scale = None
    if known.get("rope_type", known.get("type", "default")) != "default" and known.get("mscale_all_dim"):
        scale = (plain + turned) ** -0.5 * mscale(number(known, "factor"), number(known, "mscale_all_dim")) ** 2
    return LatentAttentionSpec(
        heads=size(config, "num_attention_heads"),
        rank=size(config, "kv_lora_rank"),
        query_rank=None if config.get("q_lora_rank") is None else size(config, "q_lora_rank"),
        head_width=plain,
        turned=turned,
        value_width=size(config, "v_head_dim"),
        position=rotary(config, layout="interleaved" if flag(config, "rope_interleave", default=True) else "halves"),
        scale=scale,
        norm=RMSNormSpec(eps=1e-6),
        bias=flag(config, "attention_bias", default=False),
        dropout=number(config, "attention_dropout") or 0.0,
    )


def _experts(config: Tree, limited: bool, **fields: Any) -> ExpertsSpec:
    hidden, shared = size(config, "moe_intermediate_size"), number(config, "n_shared_experts")
    groups = (
        {"groups": number(config, "n_group") or 1, "chosen_groups": number(config, "topk_group") or 1}
        if limited
        else {}
    )
    return ExpertsSpec(
        experts=size(config, "n_routed_experts"),
        chosen=size(config, "num_experts_per_tok"),
        hidden=hidden,
        activation=activation(config.get("hidden_act", "silu")),
        scale=number(config, "routed_scaling_factor", 1.0),
        shared=hidden * shared if shared else None,
        **groups,
        **fields,
    )


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    attention: Any = spec.blocks[0].attention
    kinds = [block.feedforward for block in spec.each_block()]
    mixture: Any = next((kind for kind in kinds if kind.kind == "experts"), None)
    dense = next((index for index, kind in enumerate(kinds) if kind.kind == "experts"), len(kinds))
    hidden = mixture.hidden if mixture else 1
    shared = mixture.shared if mixture else None
    return {
        **_common(spec),
        "kv_lora_rank": getattr(attention, "rank", 1),
        "q_lora_rank": getattr(attention, "query_rank", None),
        "qk_nope_head_dim": attention.head_width or 1,
        "qk_rope_head_dim": getattr(attention, "turned", 2),
        "v_head_dim": getattr(attention, "value_width", 1),
        "rope_parameters": _rope(attention),
        "rope_interleave": getattr(attention.position, "layout", "halves") == "interleaved",
        "attention_bias": attention.bias,
        "first_k_dense_replace": dense,
        "moe_intermediate_size": hidden,
        "n_routed_experts": mixture.experts if mixture else 1,
        "num_experts_per_tok": mixture.chosen if mixture else 1,
        "n_shared_experts": shared // hidden if shared else None,
        "n_group": mixture.groups if mixture else 1,
        "topk_group": mixture.chosen_groups if mixture else 1,
        "routed_scaling_factor": mixture.scale if mixture else 1.0,
        "norm_topk_prob": mixture.normalise if mixture else False,
    }


def _common(spec: TransformerSpec) -> dict[str, Any]:
    fields = parts.fields(spec)
    for name in ("num_key_value_heads", "head_dim", "rope_theta"):
        del fields[name]
    return {**fields, "num_key_value_heads": spec.blocks[0].attention.heads}


def _rope(attention: Any) -> dict[str, Any]:
    """Their table; a scale that isn't the plain one is that of YaRN, which only `mscale_all_dim` can say."""
    table = rope_parameters(attention.position)
    if getattr(attention, "scale", None) is not None and table["rope_type"] == "yarn" and table["factor"] > 1:
        stretch = (attention.scale * attention.width_of_head(0) ** 0.5) ** 0.5
        table["mscale_all_dim"] = round((stretch - 1) / (mscale(table["factor"], 1.0) - 1), 6)
    return table


def write_v2(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as a config of V2."""
    config = write(spec)
    limited = config["n_group"] > 1
    return {**config, "topk_method": "group_limited_greedy" if limited else "greedy"}


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""

    def layer(there: str, here: str, block: BlockSpec) -> list[Rule]:
        attention, feedforward = block.attention, block.feedforward
        assert attention.kind == "latent"
        table = _attention_rules(f"{there}.self_attn", f"{here}.attention", attention, spec.width)
        if feedforward.kind != "experts":
            return table + parts.gated_rules(f"{there}.mlp", f"{here}.feedforward", feedforward)
        return table + parts.expert_rules(f"{there}.mlp", f"{here}.feedforward", feedforward, parts.EXPERT_NAMES)

    return parts.decoder_rules(spec, layer)


def _attention_rules(there: str, here: str, kind: LatentAttentionSpec, width: int) -> list[Rule]:
    biased = (kind.bias, kind.bias)
    down = kind.rank + kind.turned
    table = [
        *parts.linear(f"{there}.kv_a_proj_with_mqa", f"{here}.kv_down", *biased, down),
        *parts.norm(f"{there}.kv_a_layernorm", f"{here}.kv_norm", kind.norm, kind.rank),
        same(f"{there}.kv_b_proj.weight", f"{here}.kv_up.weight"),
        *parts.linear(f"{there}.o_proj", f"{here}.out", *biased, width),
    ]
    if kind.query_rank is None:
        return [*table, same(f"{there}.q_proj.weight", f"{here}.q.weight")]
    return [
        *table,
        *parts.linear(f"{there}.q_a_proj", f"{here}.q_down", *biased, kind.query_rank),
        *parts.norm(f"{there}.q_a_layernorm", f"{here}.q_norm", kind.norm, kind.query_rank),
        same(f"{there}.q_b_proj.weight", f"{here}.q.weight"),
    ]


V2 = parts.family("deepseek_v2", "DeepseekV2ForCausalLM", read_v2, write_v2, rules)
V3 = parts.family("deepseek_v3", "DeepseekV3ForCausalLM", read_v3, write, rules)
