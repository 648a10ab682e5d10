"""Attention in NumPy and float64, its mask and its buckets decided for one query and one key at a time."""

import math

import numpy as np

from transformer.models.attention.biases import Alibi


def sees(mask, b: int, t: int, s: int) -> bool:
    """Whether query t of row b sees key s, straight from the description."""

    def at(values, index):
        return None if values is None else np.asarray(values)[b][index]

    query_position = t if mask.query_positions is None else at(mask.query_positions, t)
    key_position = s if mask.key_positions is None else at(mask.key_positions, s)
    if mask.query_lengths is not None and t >= np.asarray(mask.query_lengths)[b]:
        return False
    if mask.key_lengths is not None and s >= np.asarray(mask.key_lengths)[b]:
        return False
    if mask.query_segment_ids is not None:
        own, other = at(mask.query_segment_ids, t), at(mask.key_segment_ids, s)
        if own == 0 or other == 0 or own != other:
            return False
    if mask.key_positions is not None and key_position < 0:
        return False
    if mask.matrix is not None and not np.asarray(mask.matrix)[b, t, s]:
        return False
    if mask.prefix_lengths is not None and key_position < np.asarray(mask.prefix_lengths)[b]:
        return True
    if mask.causal and key_position > query_position:
        return False
    return mask.window is None or abs(query_position - key_position) < mask.window


def sees_all(mask, B: int, T: int, S: int) -> np.ndarray:
    """[B, T, S]: ``sees`` of every query and key."""
    return np.array([[[sees(mask, b, t, s) for s in range(S)] for t in range(T)] for b in range(B)])


def distances(mask, B: int, T: int, S: int) -> np.ndarray:
    """[B, T, S]: the key's position less the query's."""

    def positions(values, number):
        return np.arange(number)[None] if values is None else np.asarray(values)

    found = positions(mask.key_positions, S)[:, None, :] - positions(mask.query_positions, T)[:, :, None]
    return np.broadcast_to(found, (B, T, S))


def added(bias, mask, B: int, T: int, S: int) -> np.ndarray:
    """[B, H, T, S]: what the bias adds to the logits."""
    found = distances(mask, B, T, S)
    if isinstance(bias, Alibi):
        return -np.asarray(bias.slopes)[:, None, None] * np.abs(found)[:, None]
    buckets = np.vectorize(lambda d: bucket(d, len(bias.table), bias.bidirectional, bias.max_distance))(found)
    return np.moveaxis(np.asarray(bias.table)[buckets], -1, 1)


def bucket(distance: int, buckets: int, bidirectional: bool, max_distance: int) -> int:
    """T5's, one distance at a time."""
    first = 0
    if bidirectional:
        buckets //= 2
        if distance > 0:
            first = buckets
    elif distance > 0:
        return 0
    distance, exact = abs(distance), buckets // 2
    if distance < exact:
        return first + distance
    far = exact + int(math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact) + 1e-6)
    return first + min(far, buckets - 1)


def attention(query_BTHK, key_BSGK, value_BSGK, mask, scale=None, bias=None, softcap=None, seen_BTS=None):
    """Output [B, T, H, K] and weights [B, H, T, S]; ``seen_BTS`` is what ``sees_all`` gives, if it is known."""
    query, key, value = (np.asarray(array, np.float64) for array in (query_BTHK, key_BSGK, value_BSGK))
    B, T, H, K = query.shape
    S, G = key.shape[1:3]
    seen = (sees_all(mask, B, T, S) if seen_BTS is None else seen_BTS)[:, None]
    key, value = (np.repeat(array, H // G, axis=2) for array in (key, value))  # head h uses h // (H // G)
    logits = np.einsum("bthk,bshk->bhts", query, key) * (1 / math.sqrt(K) if scale is None else scale)
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    if bias is not None:
        logits = logits + added(bias, mask, B, T, S)
    top = np.max(logits, axis=-1, keepdims=True, where=seen, initial=-1e30)
    shares = np.where(seen, np.exp(np.where(seen, logits - top, 0)), 0)
    sums = shares.sum(axis=-1, keepdims=True)
    weights = shares / np.where(sums == 0, 1, sums)
    return np.einsum("bhts,bshk->bthk", weights, value), weights
