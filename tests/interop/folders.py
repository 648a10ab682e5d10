"""Small models in whole folders, as other codebases have them: with a tokenizer, or with how images are prepared."""

import io
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from tests.interop import model_files
from tests.interop.small import BERT, GPT2, LABELS, LLAMA, random_tensors, write_folder
from tests.interop.test_marian import TINY as MARIAN
from tests.interop.test_t5 import GATED
from tests.interop.test_vision_families import DINOV2_TINY, VIT_TINY

EXTRA_IDS = 27


def sentencepiece_model(seed: int, **options: Any) -> bytes:
    """A few pieces of words of the letters a to r."""
    rng, model = random.Random(seed), io.BytesIO()
    words = ["".join(rng.choices("abcdefghijklmnopqr", k=rng.randint(1, 4))) for _ in range(40)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(" ".join(rng.choices(words, k=7)) for _ in range(200)),
        model_writer=model,
        vocab_size=41,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def with_words(settings: Mapping[str, Any], *heads: str) -> Callable[[Path], Path]:
    """A model whose tokenizer is a tokenizer.json."""
    settings = {**settings, "eos_token_id": 3}

    def write(folder: Path) -> Path:
        return write_folder(folder, settings, random_tensors(settings, heads, folder.with_name("assets")))

    return write


def embedding(folder: Path) -> Path:
    """As sentence-transformers has them, by the class token."""
    with_words(BERT | {"architectures": ["BertModel"]})(folder)
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 14, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    limits = {"max_seq_length": 19, "do_lower_case": False}
    for name, content in (("1_Pooling/config.json", pooling), ("sentence_bert_config.json", limits)):
        (folder / name).write_text(json.dumps(content))
    return folder


def t5(folder: Path) -> Path:
    model = sentencepiece_model(0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    settings = GATED | {"vocab_size": len(pieces_of(model)) + EXTRA_IDS + 5}
    model_files.make(folder, settings, heads=("lm_head.weight",))
    (folder / "spiece.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps({"extra_ids": EXTRA_IDS}))
    return folder


def marian(folder: Path) -> Path:
    models = [sentencepiece_model(seed, bos_id=-1) for seed in (1, 2)]
    pieces = dict.fromkeys(["</s>", "<unk>", *pieces_of(models[0]), *pieces_of(models[1]), "<pad>"])
    size = {"vocab_size": len(pieces), "decoder_vocab_size": len(pieces)}
    ids = {key: len(pieces) - 1 for key in ("pad_token_id", "decoder_start_token_id")}
    model_files.make(folder, MARIAN | size | ids, heads=("final_logits_bias",))
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(model)
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    return folder


PREPARED = {
    "do_resize": True,
    "do_center_crop": True,
    "size": {"shortest_edge": 16},
    "crop_size": {"height": 14, "width": 14},
    "resample": 2,
    "image_mean": [0.5, 0.25, 0.125],
    "image_std": [0.5, 0.75, 1.0],
}
"""Other images than the table of positions is for, and another way of scaling than without the file."""


def of_images(settings: Mapping[str, Any], num_classes: int) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        model_files.make(folder, settings, num_classes)
        (folder / "preprocessor_config.json").write_text(json.dumps(PREPARED))
        return folder

    return write


CLASSIFIER = {"id2label": LABELS, "architectures": ["BertForSequenceClassification"]}
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "bert masked_lm": with_words(BERT, "cls.predictions.bias"),
    "bert labels": with_words(BERT | CLASSIFIER, "classifier.weight", "bert.pooler.dense.weight"),
    "bert tokens": with_words({**BERT, "id2label": LABELS}, "classifier.weight"),
    "bert embedding": embedding,
    "gpt2": with_words(GPT2),
    "llama": with_words(LLAMA),
    "t5": t5,
    "marian": marian,
    "vit": of_images(VIT_TINY | {"id2label": LABELS}, 3),
    "dinov2": of_images(DINOV2_TINY, 0),
}


def write_images(folder: Path) -> None:
    """Two images of each label, below folders with its name."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in LABELS.values():
        (folder / label).mkdir(parents=True)
        for number in range(2):
            pixels = rng.integers(0, 256, (17, 23, 3), np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
