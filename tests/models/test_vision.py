"""Vision Transformers: patches are a set until positions are added, and nothing but what is asked for is pooled."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from configs import vit_b16
from transformer.config import MeshConfig, ModelConfig, from_config_dict
from transformer.models.vision import (
    GRID_POSITIONS,
    ImageClassifier,
    bicubic_weights,
    check_vision,
    num_tokens,
    patch_grid,
)
from transformer.training.partitioning import make_mesh, parameter_shardings, unbox
from transformer.types import UserError

CONFIG = ModelConfig(
    variant="encoder_only",
    d_model=12,
    d_ff=17,
    num_heads=2,
    num_encoder_layers=2,
    norm_placement="pre",
    position_encoding="learned",
    position_grid=5,
    patch_size=2,
    num_registers=3,
    dropout_rate=0.0,
)
C = 11  # classes
IMAGES = np.random.default_rng(0).normal(size=(3, 6, 14, 3)).astype(np.float32)  # 3 x 7 patches


def config(**changes) -> ModelConfig:
    return dataclasses.replace(CONFIG, **changes)


@functools.lru_cache
def model_and_params(model_config: ModelConfig = CONFIG):
    """Parameters are moved off their zeros and ones, so that a bias that is not used is seen."""
    model = ImageClassifier(model_config, C)
    init = functools.partial(model.init, deterministic=True)
    shapes = unbox(jax.eval_shape(init, jax.random.key(0), IMAGES))["params"]
    rng = np.random.default_rng(1)
    return model, jax.tree.map(lambda leaf: np.float32(rng.normal(size=leaf.shape) * 0.4), shapes)


@functools.partial(jax.jit, static_argnames=("model", "method", "mutable", "deterministic"))
def run(model, params, images, *, method=None, mutable=False, deterministic=True, rngs=None):
    options = {"method": method, "mutable": mutable, "deterministic": deterministic, "rngs": rngs}
    return model.apply({"params": params}, images, **options)


def encode(model, images, *, deterministic):
    return model.encoder(images, deterministic=deterministic)


def tokens_and_embedded(model, params, images=IMAGES):
    """What the encoder gives, and what its stack is given."""
    tokens, collected = run(model, params, images, method=encode, mutable="intermediates")
    return np.asarray(tokens), np.asarray(collected["intermediates"]["encoder"]["stack"]["embedded"][0])


def patches_of(images, size=2):
    """Row by row, by slices."""
    height, width = images.shape[1:3]
    return np.stack(
        [
            images[:, y : y + size, x : x + size].reshape(len(images), -1)
            for y in range(0, height, size)
            for x in range(0, width, size)
        ],
        axis=1,
    )


def image_of(patches, rows, columns, size=2):
    """The image whose patches these are."""
    cut = patches.reshape(len(patches), rows, columns, size, size, -1).swapaxes(2, 3)
    return cut.reshape(len(patches), rows * size, columns * size, -1)


def test_vit_b16_has_the_parameters_of_the_paper():
    model_config = dataclasses.replace(from_config_dict(vit_b16.get_config()).model, position_grid=14)
    model = ImageClassifier(model_config, 1_000)
    images = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    params = unbox(jax.eval_shape(functools.partial(model.init, deterministic=True), jax.random.key(0), images))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 86_567_656
    assert num_tokens(model_config, 224, 224) == 197
    shapes = (jnp.zeros((2, 224, 224, 3)), params["params"])
    logits = jax.eval_shape(lambda images, params: model.apply({"params": params}, images, deterministic=True), *shapes)
    assert logits.shape == (2, 1_000) and logits.dtype == jnp.float32  # computed in bfloat16


def test_parameters_have_these_names_and_axes_that_the_mesh_knows():
    model, params = model_and_params()
    names = {
        "/".join(entry.key for entry in path): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if "stack" not in jax.tree_util.keystr(path)
    }
    assert names == {
        "encoder/patch_embedding/kernel": (2, 2, 3, 12),
        "encoder/patch_embedding/bias": (12,),
        "encoder/class_token": (12,),
        "encoder/registers": (3, 12),
        "encoder/position_encoding/embedding": (1 + 25, 12),
        "classifier/linear/kernel": (12, C),
        "classifier/linear/bias": (C,),
    }
    boxed = jax.eval_shape(functools.partial(model.init, deterministic=True), jax.random.key(0), IMAGES)["params"]
    assert jax.tree.leaves(parameter_shardings(make_mesh(MeshConfig()), boxed))


def test_tokens_are_class_token_registers_and_patches_row_by_row():
    model, params = model_and_params()
    tokens, embedded = tokens_and_embedded(model, params)
    assert tokens.shape == (3, num_tokens(CONFIG, 6, 14), 12) == (3, 1 + 3 + 21, 12)
    encoder = params["encoder"]
    kernel, bias = encoder["patch_embedding"]["kernel"], encoder["patch_embedding"]["bias"]
    table = encoder["position_encoding"]["embedding"]
    grid = table[1:].reshape(5, 5, 12)
    weights = (bicubic_weights(5, side, smoothed=True) for side in (3, 7))  # as it has registers
    places = np.einsum("rg,ch,ghd->rcd", *weights, grid).reshape(21, 12)
    np.testing.assert_allclose(embedded[:, 0], np.tile(encoder["class_token"] + table[0], (3, 1)), rtol=1e-5)
    np.testing.assert_array_equal(embedded[:, 1:4], np.tile(encoder["registers"], (3, 1, 1)))
    expected = patches_of(IMAGES) @ kernel.reshape(12, 12) + bias + places
    np.testing.assert_allclose(embedded[:, 4:], expected, rtol=1e-4, atol=1e-5)


def test_patches_are_mapped_as_by_a_convolution():
    model, params = model_and_params(config(position_encoding="none"))
    _, embedded = tokens_and_embedded(model, params)
    part = params["encoder"]["patch_embedding"]
    axes = ("NHWC", "HWIO", "NHWC")
    expected = jax.lax.conv_general_dilated(IMAGES, part["kernel"], (2, 2), "VALID", dimension_numbers=axes)
    np.testing.assert_allclose(embedded[:, 4:], expected.reshape(3, 21, 12) + part["bias"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", GRID_POSITIONS)
def test_without_positions_patches_are_a_set(scheme):
    model, params = model_and_params(config(position_encoding=scheme))
    order = np.random.default_rng(2).permutation(21)
    moved = image_of(patches_of(IMAGES)[:, order], 3, 7)
    first = np.arange(4)
    before, after = (tokens_and_embedded(model, params, images)[0] for images in (IMAGES, moved))
    expected = before[:, np.concatenate([first, 4 + order])]
    assert np.allclose(after, expected, atol=1e-4) == (scheme == "none")


def test_a_table_of_the_images_own_grid_is_taken_as_it_is():
    square = np.random.default_rng(3).normal(size=(1, 10, 10, 3)).astype(np.float32)
    model, params = model_and_params()
    unplaced, _ = model_and_params(config(position_encoding="none"))
    without = {**params, "encoder": {k: v for k, v in params["encoder"].items() if k != "position_encoding"}}
    added = tokens_and_embedded(model, params, square)[1] - tokens_and_embedded(unplaced, without, square)[1]
    table = params["encoder"]["position_encoding"]["embedding"]
    np.testing.assert_allclose(added[0, [0, *range(4, 29)]], table, atol=1e-5)
    np.testing.assert_array_equal(added[0, 1:4], 0)


@given(size=st.integers(1, 9), new_size=st.integers(1, 13), smoothed=st.booleans())
def test_interpolation_keeps_constants_order_and_identity(size, new_size, smoothed):
    weights = bicubic_weights(size, new_size, smoothed=smoothed)
    assert weights.shape == (new_size, size) and weights.dtype == np.float32
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(weights, weights[::-1, ::-1], atol=1e-6)  # left and right alike
    np.testing.assert_array_equal(bicubic_weights(size, size, smoothed=smoothed), np.eye(size))


def test_smoothing_is_that_of_pillow():
    """Which scales floats by the same kernel. Where values become more nothing is smoothed."""
    for size, new_size in ((9, 4), (16, 5), (7, 13)):
        row = np.random.default_rng(size).normal(size=size).astype(np.float32)
        expected = np.asarray(Image.fromarray(row[None]).resize((new_size, 1), Image.Resampling.BICUBIC))[0]
        np.testing.assert_allclose(bicubic_weights(size, new_size, smoothed=True) @ row, expected, atol=1e-5)


TORCH = {
    (5, 4): [
        [0.173536, 1.495344, 3.402535, 4.520664],
        [4.261602, 0.60582, 0.111152, 3.134089],
        [8.789551, 0.634277, -3.127441, 0.215332],
        [6.948505, 4.906536, -0.090907, -4.442344],
        [4.478868, 8.386551, 3.078766, -7.619356],
    ],
    (2, 2): [[2.100403, 2.596298], [5.944382, -2.713257]],
    (7, 3): [
        [0.234695, 2.546646, 4.437317],
        [1.8863, 1.263852, 3.594749],
        [5.376093, -1.950437, 2.309036],
        [8.0, -3.0, 0.0],
        [7.475218, 0.673468, -2.938774],
        [5.45481, 5.724489, -5.326527],
        [4.672012, 8.093296, -6.655977],
    ],
}
"""``interpolate(x, size, mode="bicubic", align_corners=False)`` of PyTorch 2.13 for the x of the test below."""


@pytest.mark.parametrize("size", TORCH)
def test_interpolation_is_that_of_pytorch(size):
    x = np.array([[1, 2, 4], [8, -3, 0], [5, 7, -6]], np.float32)
    rows, columns = (bicubic_weights(3, side) for side in size)
    np.testing.assert_allclose(rows @ x @ columns.T, TORCH[size], atol=1e-5)


def test_sincos_positions_by_hand():
    positions = np.asarray(GRID_POSITIONS["sincos_2d"](CONFIG).apply({}, 3, 7))
    assert positions.shape == (1 + 21, 12)
    np.testing.assert_array_equal(positions[0], 0)
    frequencies = np.array([1, 10_000 ** (-1 / 3), 10_000 ** (-2 / 3)])
    x, y = 5, 2
    expected = [np.sin(x * frequencies), np.cos(x * frequencies), np.sin(y * frequencies), np.cos(y * frequencies)]
    np.testing.assert_allclose(positions[1 + y * 7 + x], np.concatenate(expected), atol=1e-6)
    np.testing.assert_array_equal(GRID_POSITIONS["sincos_2d"](config(class_token=False)).apply({}, 3, 7), positions[1:])


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_pooled_are_the_class_token_or_the_patches_alone(pooling):
    model, params = model_and_params(config(pooling=pooling))
    tokens, _ = tokens_and_embedded(model, params)
    pooled = run(model, params, IMAGES, method="embed")
    expected = tokens[:, 0] if pooling == "first" else tokens[:, 4:].mean(axis=1)
    np.testing.assert_allclose(pooled, expected, rtol=1e-5, atol=1e-6)
    linear = params["classifier"]["linear"]
    logits = run(model, params, IMAGES)
    np.testing.assert_allclose(logits, pooled @ linear["kernel"] + linear["bias"], rtol=1e-4, atol=1e-5)


def test_without_a_class_token_all_tokens_are_patches():
    model, params = model_and_params(config(pooling="mean", class_token=False, num_registers=0))
    assert set(params["encoder"]) == {"patch_embedding", "position_encoding", "stack"}
    assert params["encoder"]["position_encoding"]["embedding"].shape == (25, 12)
    tokens, _ = tokens_and_embedded(model, params)
    np.testing.assert_allclose(run(model, params, IMAGES, method="embed"), tokens.mean(axis=1), rtol=1e-5, atol=1e-6)


def test_every_token_sees_every_pixel():
    """Also the first patch the last one's; and no image another's."""
    model, params = model_and_params()
    gradient = jax.jit(jax.grad(lambda images: encode_with(model, params, images)[1, 4].sum()))(IMAGES)
    assert (np.abs(gradient[1]) > 0).all() and (gradient[::2] == 0).all()


def encode_with(model, params, images):
    return model.apply({"params": params}, images, method=encode, deterministic=True)


def test_layers_left_out_in_training_leave_the_mean_as_it_is():
    """Stochastic depth: the last layer's parts go missing for whole rows, and count for more where they do not."""
    rate, number = 0.4, 600
    with_rate = config(stochastic_depth_rate=rate, num_registers=0)
    model, params = model_and_params(with_rate)
    output = params["encoder"]["stack"]["layers"]["feed_forward"]["down"]
    output = jax.tree.map(np.zeros_like, output)  # attention alone, so that a row has two values
    stack = params["encoder"]["stack"]
    layers = {**stack["layers"], "feed_forward": {**stack["layers"]["feed_forward"], "down": output}}
    params = {**params, "encoder": {**params["encoder"], "stack": {**stack, "layers": layers}}}
    images = np.tile(IMAGES[:1], (number, 1, 1, 1))

    def outputs(model, **options):
        _, collected = run(model, params, images, method=encode, mutable="intermediates", **options)
        return np.asarray(collected["intermediates"]["encoder"]["stack"]["layers"]["output"][0])

    plain = outputs(model)
    np.testing.assert_array_equal(plain, outputs(model_and_params(config(num_registers=0))[0]))  # off
    first, last = outputs(model, deterministic=False, rngs={"dropout": jax.random.key(0)})
    np.testing.assert_allclose(first, plain[0], rtol=1e-5, atol=1e-5)  # the first layer is never left out
    added, added_plain = last - first, (plain[1] - plain[0])[0]
    kept = np.abs(added).max(axis=(1, 2)) > 0
    np.testing.assert_allclose(added[kept] * (1 - rate), np.broadcast_to(added_plain, added[kept].shape), atol=1e-4)
    assert abs(kept.mean() - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / number)


@pytest.mark.parametrize(
    ("height", "width", "message"),
    [
        (6, 13, r"images of 6 x 13 pixels are no whole patches of model\.patch_size=2: their width could be 12 or 14"),
        (1, 4, r"their height could be 2; set data\.image_size"),
    ],
)
def test_images_of_other_sizes_are_refused_with_the_nearest(height, width, message):
    with pytest.raises(UserError, match=message):
        patch_grid(CONFIG, height, width)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_encoding": "sinusoidal"}, r"position_encoding=sinusoidal is not one of none, learned, sincos_2d"),
        ({"position_encoding": "sincos_2d", "d_model": 14}, r"a model\.d_model that 4 divides, not 14; use 12 or 16"),
        ({"class_token": False}, r"model\.pooling=first is the class token's vector; set model\.class_token=True"),
        ({"pooler": True}, r"model\.pooler=True is for text"),
        ({"token_types": 2}, r"model\.token_types=2 is for text"),
        ({"activation": "rellu"}, r"did you mean relu\?"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(changes, message):
    check_vision(CONFIG)
    with pytest.raises(UserError, match=message):
        check_vision(config(**changes))
