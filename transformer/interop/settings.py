"""Their config.json, of which no key is passed over."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer.types import UserError

HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _name_or_path _num_labels architectures attn_implementation
    chunk_size_feed_forward dtype finetuning_task gradient_checkpointing id2label initializer_range label2id
    language model_type name_or_path num_labels output_attentions output_hidden_states output_past problem_type
    task_specific_params tf_legacy_loss tokenizer_class torch_dtype torchscript transformers_version xla_device
    transformers.js_config use_bfloat16 use_cache return_dict return_dict_in_generate output_scores
    bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id prefix
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences remove_invalid_values repetition_penalty
    suppress_tokens temperature top_k top_p typical_p
    """.split()  # noqa: SIM905
)
"""Keys of every family that change no parameter and no output of the model: where it came from, how its outputs are
searched, how it is trained, which ids are special (the tokenizer says)."""

FIXED: Mapping[str, Any] = {
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "pruned_heads": {},
    "quantization_config": None,
    "tie_encoder_decoder": False,
}
"""Keys of every family that must have one value, or be absent."""

_REQUIRED = object()


def read_json(path: Path, kind: type = dict) -> Any:
    """What a JSON file holds.

    Raises:
      UserError: if it cannot be read, or holds something else than an object, or than a ``kind``.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, kind):
        raise UserError(f"{path} must hold a JSON {'object' if kind is dict else 'list'}")
    return found


class Settings:
    """The keys of a config.json. Each one is read, stated to change nothing, or refused: see :meth:`finish`.

    path: of the file, for messages.
    """

    def __init__(self, values: Mapping[str, Any], path: str):
        self._values = dict(values)
        self._path = path
        self._asked: set[str] = set()

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value of a key.

        Args:
          default: what a file without the key means; none given: it must be there.

        Raises:
          UserError: if it is not.
        """
        self._asked.add(key)
        if key in self._values:
            return self._values[key]
        if default is _REQUIRED:
            raise UserError(f"{self._path}: {key} is missing")
        return default

    def first(self, keys: Iterable[str], default: Any = _REQUIRED) -> Any:
        """The value of the first of several keys that is there: names that changed over the years."""
        keys = list(keys)
        self._asked.update(keys)
        found = [key for key in keys if key in self._values]
        return self.get(found[0] if found else keys[0], default)

    def choose(self, key: str, table: Mapping[Any, Any], default: Any = _REQUIRED) -> Any:
        """What a table makes of a key's value.

        Raises:
          UserError: for a value that is not in it.
        """
        value = self.get(key, default)
        if isinstance(value, (dict, list)) or value not in table:
            raise self.refusal(key, value, f"one of {', '.join(map(str, table))}")
        return table[value]

    def require(self, key: str, *allowed: Any) -> None:
        """Refuse a file in which the key has another value than those; it may be absent.

        Raises:
          UserError: naming key and value.
        """
        self._asked.add(key)
        if key in self._values and self._values[key] not in allowed:
            raise self.refusal(key, self._values[key], f"only {' or '.join(map(str, allowed))}")

    def file(self, key: str) -> "Settings":
        """What a file beside this one says, which is the value of a key here, or nothing; null is as good as nothing.

        It is a file of its own: :meth:`finish` is to be called on it too.
        """
        values = {name: value for name, value in self.get(key, {}).items() if value is not None}
        return Settings(values, str(Path(self._path).with_name(f"{key}.json")))

    def harmless(self, *keys: str) -> None:
        """State that these keys change nothing here."""
        self._asked.update(keys)

    def refusal(self, key: str, value: Any, possible: str) -> UserError:
        """The error for a value that cannot be translated; ``possible``: what can be."""
        return UserError(f"{self._path}: {key}={value} cannot be translated; {possible} can")

    def finish(self) -> None:
        """Refuse keys that nobody asked for: they may well change what the model computes.

        Raises:
          UserError: naming the keys.
        """
        for key, value in FIXED.items():
            if key not in self._asked:
                self.require(key, value)
        unknown = sorted(set(self._values) - self._asked - HARMLESS)
        if unknown:
            shown = ", ".join(f"{key}={self._values[key]}" for key in unknown)
            raise UserError(
                f"{self._path}: {shown}: unknown here, and may change what the model computes; if it does not, take it "
                "out of the file"
            )
