"""Cross-entropy as sums, with the forms of label smoothing that go by that one name."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from transformer.config import ModelConfig
from transformer.types import Sums, one_of


class TargetDistribution(NamedTuple):
    """The probabilities of a smoothed target; ``on_others`` is that of each class but the target and padding."""

    on_target: float
    on_others: float
    on_padding: float


def uniform(label_smoothing: float, vocab_size: int) -> TargetDistribution:
    """``(1 - e) one_hot + e / V``: the target keeps its share of the noise, so it has ``1 - e + e / V``.

    Also ``torch.nn.CrossEntropyLoss(label_smoothing=e)``, ``optax.smooth_labels`` and fairseq before 2020.

    Reference: Szegedy et al., Rethinking the Inception Architecture (2016), section 7, which the 2017 paper cites.
    """
    noise = label_smoothing / vocab_size
    return TargetDistribution(1.0 - label_smoothing + noise, noise, noise)


def others(label_smoothing: float, vocab_size: int) -> TargetDistribution:
    """``1 - e`` on the target, ``e / (V - 1)`` on every other class, padding included.

    Tensor2Tensor, T5X and the WMT example of Flax, which subtract the entropy of this distribution (a constant: the
    gradients are the same), and fairseq's ``label_smoothed_cross_entropy`` since 2020: its ``(1 - e - e_i) nll +
    e_i sum`` with ``e_i = e / (V - 1)`` is this.
    """
    noise = label_smoothing / (vocab_size - 1)
    return TargetDistribution(1.0 - label_smoothing, noise, noise)


def without_padding(label_smoothing: float, vocab_size: int) -> TargetDistribution:
    """``1 - e`` on the target, ``e / (V - 2)`` on every other class, 0 on padding.

    OpenNMT-py and Joey NMT, which subtract the entropy of this distribution: the gradients are the same.
    """
    return TargetDistribution(1.0 - label_smoothing, label_smoothing / (vocab_size - 2), 0.0)


LABEL_SMOOTHING_FORMS: dict[str, Callable[[float, int], TargetDistribution]] = {
    "uniform": uniform,
    "others": others,
    "without_padding": without_padding,
}
"""What a name in ``training.label_smoothing_form`` means: the distribution from label_smoothing and vocab_size."""


def cross_entropy(
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    weights: Float[Array, "*batch"],
    *,
    label_smoothing: float = 0.0,
    form: str = "uniform",
    padding_id: Optional[int] = None,
) -> dict[str, tuple[Float[Array, ""], Float[Array, ""]]]:
    """Weighted sums over all positions, in float32: ``-sum_v q_v log softmax(logits)_v`` and what belongs to it.

    Args:
      logits: unnormalised, of any float dtype; the sums are made in float32.
      targets: class numbers. One at or above V gives NaN, unless its weight is 0.
      weights: of each position, usually 1 or 0. Where it is 0 neither the sums nor the gradient see the logits, be they
        NaN or infinite.
      label_smoothing: e, at least 0 and below 1.
      form: a name in ``LABEL_SMOOTHING_FORMS``.
      padding_id: the class that the form ``without_padding`` leaves out.

    Returns:
      Pairs (sum, sum of the weights): ``loss``, to be minimised; ``nll``, in unsmoothed nats; ``accuracy``, 1 where the
      target is the argmax.

    Raises:
      UserError: for an unknown form.
    """
    weighted = weights != 0
    logits = jnp.where(weighted[..., None], logits.astype(jnp.float32), 0.0)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = log_normalizer - target_logits

    # sum_v q_v (-log p_v) from three numbers a position; no array of the size of the logits is made for q.
    vocab_size = logits.shape[-1]
    q = one_of("training.label_smoothing_form", form, LABEL_SMOOTHING_FORMS)(label_smoothing, vocab_size)
    loss = nll
    if label_smoothing > 0:  # with e = 0 a logit of -inf, a class ruled out, must not meet 0 * inf
        loss = (q.on_target - q.on_others) * nll
        loss += q.on_others * vocab_size * (log_normalizer - jnp.mean(logits, axis=-1))
        if q.on_padding != q.on_others:
            if padding_id is None:
                raise ValueError(f"label smoothing of the form {form} needs padding_id")
            loss += (q.on_padding - q.on_others) * (log_normalizer - logits[..., padding_id])

    weights = weights.astype(jnp.float32)
    count = jnp.sum(weights)

    def total(values: Float[Array, "*batch"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return jnp.sum(jnp.where(weighted, values * weights, 0.0)), count

    correct = _is_argmax(lax.stop_gradient(logits), targets, lax.stop_gradient(target_logits))
    return {"loss": total(loss), "nll": total(nll), "accuracy": total(correct.astype(jnp.float32))}


def _is_argmax(logits: Array, targets: Array, target_logits: Array) -> Array:
    """``argmax(logits) == targets``, the first of equal ones winning; false for NaN.

    One plain reduction: XLA's argmax, a reduction of pairs, costs more than the loss and its gradient on CPU.
    """
    classes = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    target_logits, targets = target_logits[..., None], targets[..., None]
    return jnp.all((logits < target_logits) | ((logits == target_logits) & (classes >= targets)), axis=-1)


def add_auxiliary_losses(sums: Sums, collected: Mapping[str, Any], config: ModelConfig) -> Sums:
    """The sums of a batch with those that the model's layers collected, and their losses added to ``loss``.

    Args:
      collected: the collections that ``apply`` gave; layers put (sum, count) pairs into ``sums``, each with a first
        axis for the layers of a stack. Empty for a model without a mixture of experts.

    Each layer's mean is added with the weight that the config gives to its name: Fedus et al., Switch Transformer
    (2022), section 2.2; Zoph et al., ST-MoE (2022), section 3.
    """
    pairs: dict[str, list[Any]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(collected, is_leaf=lambda node: isinstance(node, tuple)):
        pairs.setdefault(path[-1].key, []).append(leaf)
    weights = {
        "load_balancing": config.load_balancing_weight,
        "router_z": config.router_z_weight,
        "router_bias": 1.0,
    }
    loss, count = sums["loss"]
    for name, found in pairs.items():
        if name in weights:
            loss += weights[name] * count * sum(jnp.sum(total / jnp.maximum(number, 1)) for total, number in found)
    totals = {name: tuple(sum(jnp.sum(pair[i]) for pair in found) for i in (0, 1)) for name, found in pairs.items()}
    return {**sums, **totals, "loss": (loss, count)}
