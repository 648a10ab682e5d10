"""Looks that no model has to be run for: random queries and keys under every kind of mask, and awkward tokens."""

import jax.numpy as jnp
import numpy as np

from transformer.looks import AttentionOfLayer, ExpertsOfLayer, Look, LookedAtImage, Piece, Prediction
from transformer.models.attention import look_inside
from transformer.models.attention.biases import Alibi, RelativeBias
from transformer.models.masks import AttentionMask

AWKWARD = (
    "<bos>",
    "▁<b>bold</b>",
    "</script>",
    "▁مرحبا",
    "▁עברית",
    "😀👩‍👩‍👧",
    "&amp;",
    "▁\u2028",
    "'\"`",
    "<!--",
    "<eos>",
)


def layer(T, S, H, G, K, seed, *, mask=None, bias=None, softcap=None, offset=0.0) -> AttentionOfLayer:
    """Attention over random arrays, as the model keeps it."""
    rng = np.random.default_rng(seed)
    query, key, value = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((1, T, H, K), (1, S, G, K), (1, S, G, K))
    )
    key += offset  # which the softmax does not see, and of which float16 leaves few digits
    mask = mask or AttentionMask()
    inside = look_inside(query, key, value, mask, bias=bias, scale=K**-0.5, softcap=softcap)
    query, key, value = (np.swapaxes(np.asarray(each[0]), 0, 1) for each in inside[:3])
    return AttentionOfLayer(
        np.asarray(inside.weights[0]),
        query,
        key,
        value,
        np.asarray(inside.visible[0]),
        None if bias is None else np.asarray(inside.bias[0]),
        float(inside.scale),
        softcap,
        mask.window,
    )


def masked_layers(T, H, G, K) -> list[AttentionOfLayer]:
    """Of T queries and keys, one for each kind of mask, bias and cap."""
    segments = np.array([[1] * 4 + [2] * (T - 6) + [0] * 2], np.int32)
    lengths = np.array([T - 3], np.int32)
    positions = np.array([[*range(4), *range(T - 4)]], np.int32)
    table = np.random.default_rng(5).normal(size=(32, H)).astype(np.float32)
    packed = AttentionMask(
        causal=True,
        query_segment_ids=segments,
        key_segment_ids=segments,
        query_positions=positions,
        key_positions=positions,
    )
    options = [
        {},
        {"mask": AttentionMask(causal=True), "bias": Alibi(jnp.asarray(2.0 ** -np.arange(1, H + 1)))},
        {"mask": AttentionMask(causal=True, window=3), "softcap": 2.0},
        {"mask": packed, "bias": Alibi(jnp.asarray(2.0 ** -np.arange(1, H + 1)))},
        {"mask": AttentionMask(query_lengths=lengths, key_lengths=lengths), "bias": RelativeBias(table, True, 8)},
        {"mask": AttentionMask(causal=True, prefix_lengths=np.array([4], np.int32)), "offset": 300.0},
    ]
    return [layer(T, T, H, G, K, seed, **each) for seed, each in enumerate(options)]


def pieces(texts) -> tuple[Piece, ...]:
    return tuple(Piece(text, text in ("<bos>", "<eos>")) for text in texts)


def encoder_look() -> Look:
    """Eleven awkward tokens; the last layer but one has experts."""
    layers = masked_layers(len(AWKWARD), 6, 2, 5)
    experts = [None] * len(layers)
    numbers = np.arange(2 * len(AWKWARD)).reshape(-1, 2) % 7
    experts[-2] = ExpertsOfLayer(numbers, np.full(numbers.shape, 0.5, np.float32))
    predictions = {3: Prediction("<i>", 0.25, (("</script>", 0.5), ("<i>", 0.25)))}
    return Look(
        "<b>bold</b></script> مرحبا 😀",
        "<script>alert(1)</script>",
        {"encoder": pieces(AWKWARD)},
        {"encoder": tuple(layers)},
        {"encoder": tuple(experts)},
        {"encoder": predictions},
        (("<script>", 0.75), ("b", 0.25)),
    )


def translation_look(S=6, T=5, layers=2, heads=3, size=7) -> Look:
    """Of an encoder-decoder model."""
    read = [f"▁r{i}" for i in range(S - 1)] + ["<eos>"]
    written = [f"▁w{i}" if i % 3 else f"w{i}" for i in range(T - 1)] + ["<eos>"]
    causal = AttentionMask(causal=True)
    none = tuple([None] * layers)
    return Look(
        " ".join(read),
        " ".join(written),
        {"encoder": pieces(read), "decoder": pieces(["<bos>", *written[:-1]])},
        {
            "encoder": tuple(layer(S, S, heads, heads, size, seed) for seed in range(layers)),
            "decoder": tuple(layer(T, T, heads, heads, size, 10 + seed, mask=causal) for seed in range(layers)),
            "cross": tuple(layer(T, S, heads, heads, size, 20 + seed) for seed in range(layers)),
        },
        {"encoder": none, "decoder": none},
        {
            "decoder": {
                place: Prediction(text, 0.5, ((text, 0.5), ("other", 0.25))) for place, text in enumerate(written)
            }
        },
    )


def image_look() -> Look:
    """A class token, a register and 2 x 3 patches."""
    names = ("<class>", "<register 1>")
    patches = [f"{row},{column}" for row in (1, 2) for column in (1, 2, 3)]
    found = tuple(Piece(name, True) for name in names) + tuple(Piece(name) for name in patches)
    pixels = np.arange(8 * 12 * 3, dtype=np.uint8).reshape(8, 12, 3)
    layers = tuple(layer(8, 8, 2, 2, 5, seed) for seed in range(3))
    image = LookedAtImage(pixels, 2, 3, 2)
    return Look(
        "a/b/<i>.png", "cat", {"encoder": found}, {"encoder": layers}, {"encoder": (None,) * 3}, {}, image=image
    )


def long_look(T=512, layers=2) -> Look:
    """A text of many tokens in a decoder-only model."""
    texts = [f"▁t{i}" for i in range(T)]
    found = tuple(layer(T, T, 2, 1, 8, seed, mask=AttentionMask(causal=True)) for seed in range(layers))
    return Look(" ".join(texts), "", {"decoder": pieces(texts)}, {"decoder": found}, {"decoder": (None,) * layers}, {})
