"""The families that can be imported and exported: one file each, one line here."""

from transformer.interop.families.bert import BERT
from transformer.interop.families.dinov2 import DINOV2
from transformer.interop.families.gpt2 import GPT2
from transformer.interop.families.llama import LLAMA
from transformer.interop.families.marian import MARIAN
from transformer.interop.families.t5 import T5
from transformer.interop.families.vit import VIT
from transformer.interop.family import Family

FAMILIES: tuple[Family, ...] = (BERT, GPT2, LLAMA, T5, MARIAN, VIT, DINOV2)

MODEL_TYPES: dict[str, Family] = {name: family for family in FAMILIES for name in family.model_types}
"""By the ``model_type`` of a config.json."""
