"""Tiny models of each family in the files of other codebases, made from nothing; sizes are distinct primes."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import tokenizers
from safetensors.numpy import save_file

from transformer.data.labeled_text import LabelSet
from transformer.data.pretrained_tokenizers import load_pretrained
from transformer.data.vocabularies import save_tokenizers
from transformer.interop import tables
from transformer.interop.pretrained import Pretrained, read_config
from transformer.tasks import make_task
from transformer.training.partitioning import unbox

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqr"]  # 23
LABELS = {"0": "no", "1": "yes", "2": "perhaps"}

BERT = {
    "model_type": "bert",
    "vocab_size": 29,
    "hidden_size": 14,
    "intermediate_size": 17,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 31,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 23,
    "n_embd": 14,
    "n_inner": 17,
    "n_head": 2,
    "n_layer": 3,
    "n_positions": 37,
    "activation_function": "gelu_new",
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 23,
    "hidden_size": 28,
    "intermediate_size": 17,
    "num_attention_heads": 14,
    "num_key_value_heads": 7,
    "head_dim": 6,
    "num_hidden_layers": 3,
    "max_position_embeddings": 61,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
}


def write_tokenizer(folder: Path) -> None:
    """A vocabulary of words, of which [CLS] and [SEP] begin and end a text."""
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(PIECES[:5])
    tokenizer.save(str(folder / "tokenizer.json"))


def write_folder(folder: Path, settings: dict, tensors: dict[str, np.ndarray]) -> Path:
    """What a model folder of Hugging Face holds."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder)
    return folder


@functools.lru_cache
def assets(folder: Path) -> Path:
    """The tokenizer and the labels of a workdir."""
    folder.mkdir(exist_ok=True)
    write_tokenizer(folder)
    save_tokenizers(folder, load_pretrained(folder))
    LabelSet(tuple(LABELS.values()), "no").save(folder)
    return folder


def described(settings: dict, heads: tuple[str, ...] = ()):
    """Family and config of a model of which only the settings are there, and the names of its head's tensors.

    Where there is a head, the names of all other tensors have a prefix, as in real files.
    """
    names = (*heads, f"{settings['model_type']}.embeddings") if heads else ()
    return read_config(Pretrained(Path("config.json"), settings, dict.fromkeys(names)))


def random_params(config, folder: Path, seed: int = 0):
    """Flat parameters of a config, none of them a zero or a one."""
    task = make_task(config, assets(folder))
    shapes = jax.tree.map(lambda leaf: leaf.shape, unbox(jax.eval_shape(task.init, jax.random.key(0))))
    rng = np.random.default_rng(seed)
    return {path: rng.normal(size=shape).astype(np.float32) for path, shape in tables.flatten(shapes).items()}


def random_tensors(settings: dict, heads: tuple[str, ...], folder: Path) -> dict[str, np.ndarray]:
    """The tensors of a model with random parameters, as a file has them."""
    family, config = described(settings, heads)
    return dict(tables.write_tensors(family, config, random_params(config, folder)))
