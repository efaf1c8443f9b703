"""Every family as a tiny config of transformers, in the variants that its checkpoints use."""

from copy import deepcopy
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from glassformer.checkpoint.families import FAMILIES

SMALL: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 6,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
GPT2 = {"vocab_size": 101, "n_positions": 128, "n_embd": 24, "n_layer": 3, "n_head": 3, "bos_token_id": 0,
        "eos_token_id": 0}  # fmt: skip
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 10}
LATENT = {
    "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 10,
    "kv_lora_rank": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5, "first_k_dense_replace": 1,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.2, 1.5], "long_factor": [1.0, 3.0, 5.0],
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip

BERT = {key: value for key, value in SMALL.items() if key not in ("num_key_value_heads", "head_dim")}
DISTILBERT = {"vocab_size": 101, "dim": 24, "hidden_dim": 40, "n_layers": 3, "n_heads": 4, "pad_token_id": 2,
              "max_position_embeddings": 128}  # fmt: skip
SEQ2SEQ = {
    "vocab_size": 101, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 28, "max_position_embeddings": 128,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
T5 = {"vocab_size": 101, "d_model": 24, "d_kv": 5, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4,
      "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "pad_token_id": 0}  # fmt: skip
BASES = {
    "gpt2": GPT2, "bert": BERT, "roberta": BERT, "modernbert": BERT, "distilbert": DISTILBERT, "t5": T5,
    "bart": {**SEQ2SEQ, "decoder_start_token_id": 1}, "marian": {**SEQ2SEQ, "decoder_start_token_id": 2},
}  # fmt: skip

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2 untied, other sizes": ("gpt2", {"n_inner": 50, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3}),
    "gpt2 gelu, unscaled": ("gpt2", {"activation_function": "gelu", "scale_attn_weights": False}),
    "llama": ("llama", {}),
    "llama tied, multi-query": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama wide heads": ("llama", {"head_dim": 10, "rms_norm_eps": 1e-3}),
    "llama theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama 3.1": ("llama", {"rope_parameters": LLAMA3}),
    "llama linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", {"head_dim": None}),
    "qwen2 with windows": (
        "qwen2", {"head_dim": None, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3 yarn, biases": ("qwen3", {"attention_bias": True, "rope_parameters": YARN}),
    "qwen2_moe": (
        "qwen2_moe", {**EXPERTS, "head_dim": None, "shared_expert_intermediate_size": 14, "mlp_only_layers": [1]},
    ),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True, "decoder_sparse_step": 2}),
    "gemma2": ("gemma2", {"sliding_window": 7, "query_pre_attn_scalar": 8}),
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": 7, "query_pre_attn_scalar": 8, "layer_types": MIXED,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": ("phi3", {"head_dim": None, "sliding_window": 7}),
    "phi3 longrope": ("phi3", {"head_dim": None, "original_max_position_embeddings": 80, "rope_parameters": LONG}),
    "phi3 longrope, beyond": (
        "phi3", {"head_dim": None, "original_max_position_embeddings": 8, "rope_parameters": LONG},
    ),
    "olmo2": ("olmo2", {"head_dim": None}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "glm4": ("glm4", {"head_dim": 8}),
    "gpt_neox": (
        "gpt_neox", {"head_dim": None, "num_key_value_heads": None, "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.67}},
    ),
    "gpt_neox one after the other": (
        "gpt_neox",
        {"head_dim": None, "num_key_value_heads": None, "use_parallel_residual": False, "attention_bias": False,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
    ),
    "deepseek_v2": ("deepseek_v2", {**LATENT, "head_dim": None, "q_lora_rank": None}),
    "deepseek_v2 in groups, yarn": (
        "deepseek_v2",
        {**LATENT, "head_dim": None, "q_lora_rank": 12, "topk_method": "group_limited_greedy", "n_group": 4,
         "topk_group": 2, "routed_scaling_factor": 2.0,
         "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}},
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {**LATENT, "head_dim": None, "q_lora_rank": 12, "n_group": 4, "topk_group": 2,
         "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "bert": ("bert", {}),
    "bert untied": ("bert", {"tie_word_embeddings": False, "hidden_act": "gelu_new", "type_vocab_size": 3}),
    "bert sentences": ("bert", {"architectures": ["BertModel"]}),
    "bert classifier": ("bert", {"architectures": ["BertForSequenceClassification"], "num_labels": 3}),
    "bert tokens": ("bert", {"architectures": ["BertForTokenClassification"], "num_labels": 5}),
    "bert span": ("bert", {"architectures": ["BertForQuestionAnswering"]}),
    "roberta": ("roberta", {"layer_norm_eps": 1e-5, "type_vocab_size": 1}),
    "roberta sentences": ("roberta", {"architectures": ["RobertaModel"]}),
    "roberta classifier": ("roberta", {"architectures": ["RobertaForSequenceClassification"]}),
    "roberta tokens": ("roberta", {"architectures": ["RobertaForTokenClassification"]}),
    "roberta span": ("roberta", {"architectures": ["RobertaForQuestionAnswering"]}),
    "distilbert": ("distilbert", {}),
    "distilbert classifier": ("distilbert", {"architectures": ["DistilBertForSequenceClassification"]}),
    "distilbert tokens": ("distilbert", {"architectures": ["DistilBertForTokenClassification"]}),
    "distilbert span": ("distilbert", {"architectures": ["DistilBertForQuestionAnswering"]}),
    "modernbert": ("modernbert", {"local_attention": 12}),
    "modernbert biases": (
        "modernbert",
        {"local_attention": 12, "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True,
         "layer_types": MIXED, "decoder_bias": False, "tie_word_embeddings": False},
    ),
    "modernbert classifier": (
        "modernbert", {"architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "mean"},
    ),
    "modernbert tokens": ("modernbert", {"architectures": ["ModernBertForTokenClassification"]}),
    "modernbert span": ("modernbert", {"architectures": ["ModernBertForQuestionAnswering"]}),
    "t5": ("t5", {}),
    "flan-t5": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "flan-t5 with a head of its own": ("t5", {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False}),
    "bart": ("bart", {}),
    "bart scaled": ("bart", {"scale_embedding": True, "activation_function": "relu", "forced_bos_token_id": 0}),
    "marian": ("marian", {"scale_embedding": True, "activation_function": "swish"}),
}  # fmt: skip


def their_config(name: str) -> PreTrainedConfig:
    """The config of a variant."""
    kind, changes = VARIANTS[name]
    base = BASES.get(kind, SMALL)
    fields = {key: value for key, value in {**base, **changes}.items() if value is not None or key == "sliding_window"}
    return AutoConfig.for_model(kind, **deepcopy(fields))  # transformers writes into the tables that it is given


def families_without_a_variant() -> set[str]:
    return set(FAMILIES) - {kind for kind, _ in VARIANTS.values()}
