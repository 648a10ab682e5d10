"""A language model small enough to enumerate: a table of log-probabilities, looked up by a hash of the whole history.

The step keeps the hash in its state, so a search that hands over wrong parents gets other log-probabilities at once.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

# These programs are tiny and many: compiling is what takes the time.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

BOS = 1
EOS = 0
NUM_ROWS = 97


def _hash(history, token):
    return (history * 31 + token + 1) % NUM_ROWS


def initial_state(table_BMV, width):
    return table_BMV, jnp.zeros((table_BMV.shape[0], width), jnp.int32), jnp.zeros((), jnp.int32)


def step(state, parents_BW, tokens_BW):
    table_BMV, hash_BW, calls = state
    hash_BW = _hash(jnp.take_along_axis(hash_BW, parents_BW, axis=1), tokens_BW)
    return table_BMV[jnp.arange(table_BMV.shape[0])[:, None], hash_BW], (table_BMV, hash_BW, calls + 1)


def next_log_probs(table_MV, prefix):
    """What the step gives after ``prefix``, in NumPy."""
    history = 0
    for token in (BOS, *prefix):
        history = _hash(history, token)
    return table_MV[history]


def teacher_forced(table_MV, tokens):
    """The log-probability of ``tokens``, EOS included if they end in it."""
    total = np.float32(0)
    for place, token in enumerate(tokens):
        total += next_log_probs(table_MV, tokens[:place])[token]
    return total


def random_tables(seed, batch_size, vocab_size, kind):
    """``smooth``: normalised; ``ties``: few values, unnormalised; ``forbidden``: most tokens at -inf."""
    rng = np.random.default_rng(seed)
    shape = (batch_size, NUM_ROWS, vocab_size)
    if kind == "ties":
        return (-rng.integers(1, 4, shape) / 4).astype(np.float32)
    logits = 2 * rng.standard_normal(shape)
    if kind == "forbidden":
        logits = np.where(rng.random(shape) < 0.4, logits, -np.inf)
    largest = np.where(np.isfinite(logits.max(-1, keepdims=True)), logits.max(-1, keepdims=True), 0)
    total = np.exp(logits - largest).sum(-1, keepdims=True)
    return (logits - largest - np.log(np.where(total > 0, total, 1))).astype(np.float32)


def as_lists(hypotheses):
    """For each sentence the outputs that exist: (tokens with EOS if finished, score, log-probability)."""
    tokens, lengths, scores, log_probs, finished = (np.asarray(field) for field in hypotheses)
    return [
        [
            (
                (*tokens[b, r, : lengths[b, r]].tolist(), *([EOS] if finished[b, r] else [])),
                scores[b, r],
                log_probs[b, r],
            )
            for r in range(tokens.shape[1])
            if scores[b, r] > -np.inf
        ]
        for b in range(tokens.shape[0])
    ]


def check_form(hypotheses, limits):
    """What the docstring of Hypotheses promises of any output."""
    tokens, lengths, scores, log_probs, finished = (np.asarray(field) for field in hypotheses)
    places = np.arange(tokens.shape[2])
    inside = places < lengths[..., None]
    assert np.all(tokens[inside] != EOS)
    assert np.all(tokens[~inside] == EOS)
    exists = scores > -np.inf
    assert not np.isnan(scores).any() and not np.isnan(log_probs).any()
    assert np.all((log_probs > -np.inf) == exists)
    assert np.all(lengths[~exists] == 0) and not finished[~exists].any()
    size = lengths + finished
    limits = np.broadcast_to(np.asarray(limits)[:, None], size.shape)
    assert np.all(size[exists] <= limits[exists])
    assert np.all(size[exists & ~finished] == limits[exists & ~finished])
