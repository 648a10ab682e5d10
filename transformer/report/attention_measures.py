"""Numbers and matrices that are made of attention weights, in NumPy."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from transformer.data.pieces import SPACE
from transformer.looks import Look, LookedAtImage


def entropy(weights_HTS: Float[np.ndarray, "H T S"]) -> Float[np.ndarray, "H"]:
    """Of each head the entropy of a query's weights in nats, the mean over queries: 0 looks at one key, ln S at all."""
    logs = np.log(weights_HTS, out=np.zeros_like(weights_HTS), where=weights_HTS > 0)
    return _mean_of_queries(-(weights_HTS * logs).sum(axis=-1), weights_HTS)


def mean_distance(
    weights_HTS: Float[np.ndarray, "H T S"], distances_TS: Float[np.ndarray, "T S"]
) -> Float[np.ndarray, "H"]:
    """Of each head the distance of what a query looks at, weighted, the mean over queries; see ``distances``."""
    return _mean_of_queries((weights_HTS * distances_TS).sum(axis=-1), weights_HTS)


def diagonality(weights_HTS: Float[np.ndarray, "H T S"]) -> Float[np.ndarray, "H"]:
    """Of each head the correlation, under its weights, of the places of queries and keys.

    1: they lie on one rising line, as in a head that looks at the token before, or in an alignment without reordering.
    0: where a query looks has nothing to do with its place. Where all queries look at one key it is 0.
    """
    _, T, S = weights_HTS.shape
    total = np.maximum(weights_HTS.sum(axis=(1, 2), keepdims=True), np.float32(1e-30))
    joint = weights_HTS.astype(np.float64) / total
    t, s = np.arange(T)[:, None], np.arange(S)[None, :]
    t_mean, s_mean = ((joint * place).sum(axis=(1, 2), keepdims=True) for place in (t, s))
    covariance = (joint * (t - t_mean) * (s - s_mean)).sum(axis=(1, 2))
    variances = (joint * (t - t_mean) ** 2).sum(axis=(1, 2)) * (joint * (s - s_mean) ** 2).sum(axis=(1, 2))
    return np.where(variances > 1e-12, covariance / np.sqrt(np.maximum(variances, 1e-12)), 0.0)


def share_on(weights_HTS: Float[np.ndarray, "H T S"], keys_S: Bool[np.ndarray, "S"]) -> Float[np.ndarray, "H"]:
    """Of each head the weight that a query gives to some of the keys, the mean over queries."""
    return _mean_of_queries(weights_HTS[..., keys_S].sum(axis=-1), weights_HTS)


def distances(num_queries: int, num_keys: int, image: LookedAtImage | None = None) -> Float[np.ndarray, "T S"]:
    """How far apart each query and key stand: in tokens; between sides along the diagonal from corner to corner; in an
    image in patches, and 0 for what is no patch."""
    if image is None:
        slope = 1.0 if num_queries == num_keys else (num_keys - 1) / max(num_queries - 1, 1)
        return np.abs(np.arange(num_queries)[:, None] * slope - np.arange(num_keys)[None, :])
    numbers = np.arange(image.rows * image.columns)
    places = np.stack(np.divmod(numbers, image.columns), axis=-1)
    apart = np.zeros((num_queries, num_keys))
    between = np.linalg.norm(places[:, None] - places[None], axis=-1)
    apart[image.first_patch :, image.first_patch :] = between
    return apart


def measures(look: Look, stack: str) -> list[dict[str, np.ndarray]]:
    """Of each layer of a stack every measure that makes sense there, float [H], by name."""
    special = np.array([piece.special for piece in look.pieces[key_side(stack)]])
    found = []
    for weights in look.weights[stack]:
        apart = distances(weights.shape[1], weights.shape[2], look.image)
        of_layer = {"entropy": entropy(weights), "distance": mean_distance(weights, apart)}
        if look.image is None:
            of_layer["diagonality"] = diagonality(weights)
        if special.any() and not special.all():
            of_layer["special"] = share_on(weights, special)
        found.append(of_layer)
    return found


def key_side(stack: str) -> str:
    """Whose pieces the keys of a stack are."""
    return "decoder" if stack == "decoder" else "encoder"


def query_side(stack: str) -> str:
    """Whose pieces the queries of a stack are."""
    return "encoder" if stack == "encoder" else "decoder"


def rollout(weights: Sequence[Float[np.ndarray, "H T T"]]) -> list[Float[np.ndarray, "T T"]]:
    """How much of each input is in each place after each layer, if heads count alike and half goes around attention.

    ``R_l = A_l R_{l-1}`` with ``A_l`` the mean of the heads and the identity, rows divided by their sums.

    Reference: Abnar and Zuidema, Quantifying Attention Flow in Transformers (2020), section 3.
    """
    found: list[np.ndarray] = []
    for weights_HTT in weights:
        mixed = weights_HTT.mean(axis=0) + np.eye(weights_HTT.shape[1], dtype=weights_HTT.dtype)
        mixed /= mixed.sum(axis=1, keepdims=True)
        found.append(mixed @ found[-1] if found else mixed)
    return found


def hidden(
    weights_TS: Float[np.ndarray, "T S"], keys_S: Bool[np.ndarray, "S"], *, renormalise: bool
) -> Float[np.ndarray, "T S_"]:
    """Weights without some keys; ``renormalise``: what is left of each row made to add up to 1 again."""
    left = weights_TS[:, ~keys_S]
    return left / np.maximum(left.sum(axis=1, keepdims=True), 1e-30) if renormalise else left


def word_starts(texts: Sequence[str], special: Sequence[bool]) -> list[int]:
    """Of each piece the number of its word: words begin with a space (shown as U+2581), special pieces stand alone, and
    so do marks behind a word."""
    numbers: list[int] = []
    for place, text in enumerate(texts):
        begins = place == 0 or text.startswith(SPACE) or special[place] or special[place - 1]
        begins = begins or _is_word(text) != _is_word(texts[place - 1])
        numbers.append((numbers[-1] if numbers else -1) + int(begins))
    return numbers


def _is_word(piece: str) -> bool:
    """Whether it has letters or digits; a space of its own belongs to what follows."""
    return piece == SPACE or any(character.isalnum() for character in piece)


def alignment(
    weights: Sequence[Float[np.ndarray, "H T S"]],
    queries: Sequence[int],
    keys: Sequence[int],
    heads: Mapping[int, Sequence[int]],
) -> Float[np.ndarray, "written read"]:
    """Words that are written to words that are read: weights of some heads of cross-attention, averaged.

    Over the pieces of a word that is read they add up, over those of one that is written the mean is taken.

    Args:
      weights: of each layer.
      queries: of each piece that is written the number of its word, see ``word_starts``.
      keys: of each piece that is read, likewise.
      heads: the numbers of the heads by that of their layer.

    Reference: Garg et al., Jointly Learning to Align and Translate (2019), section 3, on heads that align.
    """
    chosen = [weights[layer][head] for layer, numbers in heads.items() for head in numbers]
    mean_TS = np.mean(chosen, axis=0)
    read = np.eye(max(keys) + 1)[list(keys)]
    written = np.eye(max(queries) + 1)[list(queries)]
    return (written.T @ mean_TS @ read) / written.sum(axis=0)[:, None]


def _mean_of_queries(values_HT: np.ndarray, weights_HTS: np.ndarray) -> np.ndarray:
    """Over the queries that see something."""
    sees_HT = weights_HTS.sum(axis=-1) > 0
    return np.where(sees_HT, values_HT, 0).sum(axis=-1) / np.maximum(sees_HT.sum(axis=-1), 1)
