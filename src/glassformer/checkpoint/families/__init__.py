"""The families whose weights we read and write, by the `model_type` in their config.json. One file each."""

from glassformer.checkpoint.families import gpt2, llama
from glassformer.checkpoint.families.base import Family

FAMILIES: dict[str, Family] = {family.FAMILY.model_type: family.FAMILY for family in (gpt2, llama)}
