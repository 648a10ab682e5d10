"""Attention and its mask once more, in NumPy and float64, one query and one key at a time."""

import math

import numpy as np


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


def attention(query_BTHK, key_BSGK, value_BSGK, mask, scale=None):
    """Output [B, T, H, K] and weights [B, H, T, S]."""
    query, key, value = (np.asarray(array, np.float64) for array in (query_BTHK, key_BSGK, value_BSGK))
    B, T, H, K = query.shape
    S, G = key.shape[1:3]
    output, weights = np.zeros((B, T, H, K)), np.zeros((B, H, T, S))
    scale = 1 / math.sqrt(K) if scale is None else scale
    for b in range(B):
        for t in range(T):
            keys = [s for s in range(S) if sees(mask, b, t, s)]
            if not keys:
                continue
            for h in range(H):
                g = h // (H // G)
                scores = np.array([query[b, t, h] @ key[b, s, g] * scale for s in keys])
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                weights[b, h, t, keys] = shares
                output[b, t, h] = shares @ value[b, keys, g]
    return output, weights
