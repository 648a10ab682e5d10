"""What a model did with one input, for people to look at: made by tasks, shown by reports."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from transformer.types import Params


class Piece(NamedTuple):
    """A token, a patch or another vector that attention knows, as people are shown it.

    text
    special  whether it is there for the model only: BOS, EOS, padding, a class token
    """

    text: str
    special: bool = False


class Prediction(NamedTuple):
    """What a model expected somewhere.

    text          what was chosen, or stood there
    probability   of it
    alternatives  the likeliest, with their probabilities, best first; what was chosen may be among them
    """

    text: str
    probability: float
    alternatives: tuple[tuple[str, float], ...]


class AttentionOfLayer(NamedTuple):
    """One attention and all it was made of: ``weights = softmax(cap(scale query . key) + bias)`` over what is visible.

    ``cap(x)`` is ``softcap tanh(x / softcap)``, or x. Query head h has the keys and values of number h // (H / G).

    weights  float32 [H, T, S]
    query    float32 [H, T, K]  turned by their positions where these are rotary, as the keys are
    key      float32 [G, S, K]
    value    float32 [G, S, K]
    visible  bool [T, S]
    bias     float32 [H, T, S]; None: none is added
    scale    of the dot products
    softcap  None: no cap
    window   keys that are further away than ``window - 1`` positions are hidden; None: no window
    """

    weights: Any
    query: Any
    key: Any
    value: Any
    visible: Any
    bias: Any
    scale: float
    softcap: float | None
    window: int | None


class ExpertsOfLayer(NamedTuple):
    """Where a mixture of experts sent each token.

    numbers  int32 [T, J]    of its experts, the best first
    weights  float32 [T, J]  of their outputs
    """

    numbers: Any
    weights: Any


class LookedAtImage(NamedTuple):
    """An image as a model was given it.

    pixels       uint8 [height, width, channels]
    rows         of patches
    columns      of patches
    first_patch  the number of the first patch among the pieces; what stands before it is special
    """

    pixels: Any
    rows: int
    columns: int
    first_patch: int


class Look(NamedTuple):
    """What a model did with one input.

    A stack is ``encoder`` or ``decoder`` for self-attention, or ``cross``, whose queries are the decoder's and whose
    keys are the encoder's.

    input        as it was given
    output       what the model gave for it, or the target that it was to give
    pieces       of each side, ``encoder`` and ``decoder``: what stands at each place of its input
    attention    of each stack, one for each layer
    experts      of each side, one for each layer, None where that has no mixture
    predictions  of each side, by the place at which the model made them; a decoder predicts at each the next piece
    outcomes     of the whole input, such as its class: the likeliest with their probabilities
    image        where the input is one
    """

    input: str
    output: str
    pieces: Mapping[str, tuple[Piece, ...]]
    attention: Mapping[str, tuple[AttentionOfLayer, ...]]
    experts: Mapping[str, tuple[ExpertsOfLayer | None, ...]]
    predictions: Mapping[str, Mapping[int, Prediction]]
    outcomes: tuple[tuple[str, float], ...] = ()
    image: LookedAtImage | None = None

    @property
    def weights(self) -> dict[str, list[Any]]:
        """``weights[stack][layer]``, float32 [H, T, S]."""
        return {stack: [layer.weights for layer in layers] for stack, layers in self.attention.items()}


@runtime_checkable
class CanBeLookedInto(Protocol):
    """What a task has beside the protocol :class:`Task` if reports can show what its model attends to."""

    def look(self, params: Params, line: str, target: str | None = None) -> Look:
        """Run the model on one input, in float32 and with the attention ``dense``, whatever the config says.

        Args:
          line: as for ``candidates``; longer ones are cut in the same way.
          target: what an encoder-decoder model is to be looked at writing; None: its own best output.
        """
        ...
