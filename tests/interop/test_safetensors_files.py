"""Tensors are read from one file or several, in float32 whatever they were, and never from pickled files."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from transformer.interop.safetensors_files import SafetensorsFolder
from transformer.types import UserError


def test_several_files_and_short_floats(tmp_path):
    values = np.array([[1.5, -2.25, 3e-3]], np.float32)
    parts = {
        "one.safetensors": {"a": values, "b": values.astype(np.float16)},
        "two.safetensors": {"c": values.astype(ml_dtypes.bfloat16), "d": np.arange(3), "e": values.astype(np.float64)},
    }
    for name, tensors in parts.items():
        save_file(tensors, tmp_path / name)
    index = {"weight_map": {key: name for name, tensors in parts.items() for key in tensors}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = SafetensorsFolder(tmp_path)
    assert sorted(found) == list("abcde") and len(found) == 5
    for name in "abce":
        tensor = next(tensors[name] for tensors in parts.values() if name in tensors)
        np.testing.assert_array_equal(found[name], tensor.astype(np.float32))
        assert found[name].dtype == np.float32
    np.testing.assert_array_equal(found["d"], np.arange(3))
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(UserError, match=r"two\.safetensors cannot be read"):
        SafetensorsFolder(tmp_path)


def test_an_index_that_does_not_fit_its_files(tmp_path):
    save_file({"a": np.zeros(5, np.float32), "more": np.zeros(1, np.float32)}, tmp_path / "one.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    for content, message in (
        ("{bad", r"index\.json cannot be read"),
        ("[]", r"index\.json must hold a JSON object"),
        ("{}", r"index\.json has no weight_map"),
        ('{"weight_map": ["a"]}', r"index\.json has no weight_map"),
        (
            '{"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}',
            r"one\.safetensors has no b, .*index\.json",
        ),
    ):
        index.write_text(content)
        with pytest.raises(UserError, match=message):
            SafetensorsFolder(tmp_path)
    index.write_text('{"weight_map": {"a": "one.safetensors"}}')
    assert set(SafetensorsFolder(tmp_path)) == {"a", "more"}  # what becomes of it is for others to say


def test_damaged_and_pickled_files(tmp_path):
    with pytest.raises(UserError, match=r"holds neither model\.safetensors"):
        SafetensorsFolder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"pytorch_model\.bin.*can run any code.*save_pretrained"):
        SafetensorsFolder(tmp_path)
    save_file({"a": np.zeros((5, 7), np.float32)}, tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[:-5])
    with pytest.raises(UserError, match=r"model\.safetensors cannot be read"):
        SafetensorsFolder(tmp_path)
