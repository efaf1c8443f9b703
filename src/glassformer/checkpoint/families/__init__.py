"""The families whose weights we read and write, by the `model_type` in their config.json. One file each."""

from glassformer.checkpoint.families import (
    bart,
    bert,
    deepseek,
    distilbert,
    gemma2,
    gemma3,
    glm4,
    gpt2,
    gpt_neox,
    llama,
    marian,
    mistral,
    mixtral,
    modernbert,
    olmo2,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    roberta,
    smollm3,
    t5,
)
from glassformer.checkpoint.families.base import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        # In the order in which an export tries them.
        *(file.FAMILY for file in (gpt2, llama, mistral, mixtral, qwen2, qwen3, qwen2_moe, qwen3_moe)),
        *(file.FAMILY for file in (gemma2, gemma3, phi3, olmo2, smollm3, glm4, gpt_neox)),
        deepseek.V2,
        deepseek.V3,
        *(file.FAMILY for file in (bert, roberta, distilbert, modernbert, t5, bart, marian)),
    )
}
