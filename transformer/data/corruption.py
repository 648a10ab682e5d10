"""Text with something to restore: tokens masked for an encoder, spans cut out for an encoder-decoder.

Many texts are worked on at once, one after the other in flat arrays. Random numbers come from outside, so that a
training batch can draw them by (seed, step) and an evaluation by (seed, text), whatever else is in the batch.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from transformer.data.batching import ALL_ROWS, Layout, PackPlan, Plan, make_windows
from transformer.data.pipeline import Segments, seq2seq_batch
from transformer.data.store import Tokens
from transformer.data.tokenizer import Tokenizer
from transformer.types import MaskedTokenBatch, Seq2SeqBatch, UserError

MASKED, RANDOM = 0.8, 0.1  # of the tokens to be guessed: replaced by the mask, by a random piece; the others stay
TRAINING, SCORING = 1, 2  # the last number in the key of a generator; those of plans have none


class Pieces:
    """Documents as texts of at most so many tokens, each cut from its start, without the EOS at its end.

    Attributes:
      lengths: int32, of each text.
      documents: the document that each is of.
    """

    def __init__(self, documents: Tokens, most: int):
        windows = make_windows(documents.lengths - 1, most, most)
        filled = windows.lengths > 0  # a document may have no character that the tokenizer knows
        self._tokens = documents
        self.documents = windows.documents[filled]
        self.lengths = windows.lengths[filled]
        self._starts = documents.offsets[self.documents] + windows.starts[filled]

    def gather(self, examples: np.ndarray) -> np.ndarray:
        """The tokens of many texts, one text after the other, as one flat int32 array."""
        lengths = self.lengths[examples]
        return self._tokens.at(np.repeat(self._starts[examples], lengths) + _within(lengths))


class RandomNumbers:
    """Uniform numbers in [0, 1), some for each token of a batch of texts.

    Args:
      seed: of all of them.
      fixed: whether a text has the same ones in every batch, or each batch fresh ones.
      kinds: how many each token has.
    """

    def __init__(self, seed: int, *, fixed: bool, kinds: int):
        self._seed = seed
        self._fixed = fixed
        self._kinds = kinds

    def __call__(self, step: int, layout: Layout, lengths: np.ndarray, rows: slice = ALL_ROWS) -> np.ndarray:
        """[kinds, tokens], for the texts in some rows of batch number ``step``.

        Args:
          layout: of the whole batch.
          lengths: of all texts that there are.
        """
        examples = layout.examples
        lengths = lengths[examples]
        inside = layout.stand_in(rows)
        if not self._fixed:
            rng = np.random.default_rng([self._seed, step, TRAINING])
            return rng.random((self._kinds, int(lengths.sum())))[:, np.repeat(inside, lengths)]
        examples, lengths = examples[inside], lengths[inside]
        return np.concatenate(
            [
                np.random.default_rng([self._seed, example, SCORING]).random((self._kinds, length))
                for example, length in zip(examples.tolist(), lengths.tolist(), strict=True)
            ],
            axis=1,
        )


# Masked language modelling


class TokenMasker:
    """Chooses tokens of texts to be guessed, and hides them.

    Of the n ordinary tokens of a text (all but the special ones) ``round(rate n)`` are chosen, at least 1; of these
    80% become the mask, 10% any ordinary piece and 10% stay, each drawn by itself. With whole words, words in random
    order are chosen as long as they do not make more tokens; a word that alone has more is never chosen, unless all of
    a text's words are so long, which then are taken apart.

    Reference: Devlin et al., BERT (2019), section 3.1 (task 1) and appendix A.1. Its code counts [CLS] and [SEP] among
    the n, may put special pieces in place of tokens, goes on with shorter words after one that has no room, and draws
    ten masks of a text in advance. Here, as in RoBERTa (Liu et al. 2019, section 4.1), each epoch draws a new one.
    """

    def __init__(self, tokenizer: Tokenizer, *, rate: float, whole_words: bool):
        """
        Args:
          rate: of the tokens to be guessed, in [0, 1).

        Raises:
          UserError: the tokenizer has no mask, or for ``whole_words`` no pieces by which words can be told.
        """
        if tokenizer.mask_id is None:
            raise UserError(
                "task=masked_lm needs a tokenizer with a mask; set data.extra_ids=1, so that a vocabulary that is made "
                "from the text has one, or give a data.tokenizer that has"
            )
        self.ordinary = np.ones(tokenizer.vocab_size, bool)
        """[pieces] whether a piece is text."""
        self.ordinary[special_ids(tokenizer)] = False
        self.mask_id: int = tokenizer.mask_id
        self._rate = rate
        self._pieces = np.flatnonzero(self.ordinary)
        ones = np.ones(tokenizer.vocab_size, bool)
        self._opens, self._closes = word_bounds(tokenizer) if whole_words else (ones, ones)

    def most(self, num_tokens: np.ndarray) -> np.ndarray:
        """How many tokens of texts with so many ordinary ones are chosen; with whole words it may be fewer."""
        return np.where(num_tokens > 0, np.maximum(np.rint(self._rate * num_tokens), 1), 0).astype(np.int64)

    def __call__(self, tokens: np.ndarray, lengths: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that the model is given, and which are to be guessed.

        Args:
          tokens: int32 [tokens], of all texts, with their special tokens.
          lengths: [texts], none 0.
          numbers: [3, tokens], random, in [0, 1).
        """
        ordinary = self.ordinary[tokens]
        opens = self._opens[tokens] | ~ordinary
        opens[1:] |= self._closes[tokens[:-1]] | ~ordinary[:-1]
        opens[np.cumsum(lengths) - lengths] = True
        chosen = self._choose(ordinary, opens, lengths, numbers[0])
        others = self._pieces[(numbers[2] * len(self._pieces)).astype(np.int64)]
        replaced = np.where(numbers[1] < MASKED, self.mask_id, others)
        return np.where(chosen & (numbers[1] < MASKED + RANDOM), replaced, tokens).astype(np.int32), chosen

    def _choose(self, ordinary: np.ndarray, opens: np.ndarray, lengths: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Which tokens are to be guessed; a word goes from one token that ``opens`` to the next."""
        texts = np.repeat(np.arange(len(lengths)), lengths)
        most = self.most(np.bincount(texts, ordinary, len(lengths)))
        firsts = np.flatnonzero(opens)
        sizes = np.diff(np.append(firsts, len(opens)))
        text = texts[firsts]
        fits = ordinary[firsts] & (sizes <= most[text])
        too_long = (most > 0) & (np.bincount(text, fits, len(lengths)) == 0)
        if too_long.any():
            return self._choose(ordinary, opens | too_long[texts], lengths, numbers)
        order = np.lexsort((np.where(fits, numbers[firsts], np.inf), text))
        before = np.cumsum(lengths) - lengths
        sums = np.cumsum(sizes[order]) - before[text[order]]
        taken = np.empty(len(firsts), bool)
        taken[order] = fits[order] & (sums <= most[text[order]])
        return np.repeat(taken, sizes)


class MaskedTokenPipeline:
    """Batches of texts between BOS and EOS, with tokens to guess: ``batch(n)`` depends on nothing but the arguments, n.

    Attributes:
      num_batches: per epoch.
      shapes: every (B, T) that a batch can have.
      padding_share: of all positions of an epoch.
    """

    def __init__(
        self, pieces: Pieces, plan: Plan, tokenizer: Tokenizer, masker: TokenMasker, *, seed: int, fixed: bool = False
    ):
        """
        Args:
          plan: of pairs of which both sides are a text, with 2 tokens more.
          seed: of the choice.
          fixed: whether each text has the same tokens to guess in every batch, or fresh ones.
        """
        self._pieces = pieces
        self._plan = plan
        self._tokenizer = tokenizer
        self._masker = masker
        self._numbers = RandomNumbers(seed, fixed=fixed, kinds=3)
        self.num_batches = plan.num_batches
        self.shapes = tuple((rows, length) for rows, _, length in plan.shapes)
        self.padding_share = plan.padding_share()
        self._room = {length: int(masker.most(np.array(length - 2))) for _, length in self.shapes}
        if isinstance(plan, PackPlan):
            [(_, length)] = self.shapes
            self._room[length] = self._most_in_a_row()

    def _most_in_a_row(self) -> int:
        """How many tokens of a packed row are chosen; which texts share a row is the same in every epoch."""
        most = self._masker.most(self._pieces.lengths)
        layouts = map(self._plan.batch, range(self.num_batches))
        return int(max(np.bincount(layout.rows, most[layout.examples]).max() for layout in layouts))

    def steps_of_shapes(self) -> tuple[int, ...]:
        """Of each shape that a batch can have the first step with it, ascending."""
        return self._plan.steps_of_shapes()

    def size(self, step: int) -> tuple[int, int]:
        """Rows of batch number ``step``, and positions of the longer side."""
        return self._plan.batch(step).size

    def batch(self, step: int, rows: slice = ALL_ROWS) -> MaskedTokenBatch:
        """Batch number ``step``, counted from 0 across epochs, or some rows of it."""
        return self.numbered_batch(step, rows)[1]

    def numbered_batch(self, step: int, rows: slice = ALL_ROWS) -> tuple[Layout, MaskedTokenBatch]:
        """The same, and which texts stand where."""
        whole = self._plan.batch(step)
        layout = whole.of_rows(rows)
        num_rows, _, length = layout.shape
        inner = self._pieces.lengths[layout.examples]
        ends, lengths = np.cumsum(inner), inner + 2
        closing = np.repeat([self._tokenizer.eos_id, self._tokenizer.bos_id], len(inner))
        tokens = np.insert(
            self._pieces.gather(layout.examples), np.concatenate([ends, ends - inner]), closing.astype(np.int32)
        )
        numbers = self._numbers(step, whole, self._pieces.lengths + 2, rows)
        inputs, chosen = self._masker(tokens, lengths, numbers)

        segments = Segments(num_rows, length, layout.rows, layout.target_offsets, lengths)
        columns = segments.each_token(layout.target_offsets) + segments.positions
        counts = np.bincount(segments.each_token(layout.rows)[chosen], minlength=num_rows)
        masked = Segments(num_rows, self._room[length], np.arange(num_rows), np.zeros(num_rows, np.int64), counts)
        return layout, MaskedTokenBatch(
            input_tokens=segments.place(inputs, self._tokenizer.pad_id),
            segment_ids=segments.place(segments.each_token(layout.segments)),
            positions=segments.place(segments.positions),
            masked_positions=masked.place(columns[chosen]),
            target_tokens=masked.place(tokens[chosen], self._tokenizer.pad_id),
            loss_weights=masked.place(np.ones(counts.sum())).astype(np.float32),
        )


def special_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of pieces that are no text, the unknown piece among them."""
    ids = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id)
    return sorted({i for i in (*ids, *tokenizer.sentinel_ids) if i is not None and i >= 0})


def word_bounds(tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Of each piece, whether a word begins with it, and whether one begins with whatever follows it (a line's end).

    What the tokenizer itself writes behind a letter tells: white space, or the letter goes on. So the pieces of a word
    are in SentencePiece and GPT-2 that with the space before it and those after it, in WordPiece those with ``##``.

    Raises:
      UserError: no piece begins a word.
    """
    letter = tokenizer.encode("a")
    known = len(tokenizer.decode(letter))
    texts = [tokenizer.decode([*letter, i])[known:] for i in range(tokenizer.vocab_size)]
    opens = np.array([text[:1].isspace() for text in texts])
    opens[special_ids(tokenizer)] = False
    if not opens.any():
        raise UserError(
            "data.whole_words=True needs a tokenizer that knows spaces, by which words can be told; use another, or "
            "data.whole_words=False"
        )
    return opens, np.array([bool(text) and not text.strip("\t\n\r") for text in texts])


# Span corruption


def span_counts(lengths: np.ndarray, density: float, mean_length: float) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of texts of these lengths are cut out, and in how many spans.

    ``round(density n)`` tokens, in ``round(that / mean_length)`` spans, both at least 1, and at least one token stays
    for each span. Of a single token, which T5 leaves, the text is cut out whole.

    Args:
      lengths: of texts, at least 1.
      density: of the tokens that are cut out, in [0, 1).
      mean_length: of the spans, at least 1.
    """
    num_noise = np.clip(np.rint(lengths * density), 1, np.maximum(lengths - 1, 1)).astype(np.int64)
    most = np.minimum(num_noise, np.maximum(lengths - num_noise, 1))
    return num_noise, np.clip(np.rint(num_noise / mean_length), 1, most).astype(np.int64)


def corrupted_lengths(lengths: np.ndarray, density: float, mean_length: float) -> tuple[np.ndarray, np.ndarray]:
    """How long what is left of texts and what is cut out are, int32, each with its sentinels and EOS."""
    num_noise, num_spans = span_counts(lengths, density, mean_length)
    return (lengths - num_noise + num_spans + 1).astype(np.int32), (num_noise + num_spans + 1).astype(np.int32)


def noise_mask(lengths: np.ndarray, density: float, mean_length: float, numbers: np.ndarray) -> np.ndarray:
    """Which tokens of texts are cut out: spans of random lengths, the last one at the end.

    Before each, at least one token stays. All ways to divide the tokens that stay, and those that are cut out, into so
    many parts are equally likely.

    Args:
      lengths: [texts], none 0.
      numbers: [tokens], random, in [0, 1).

    Reference: Raffel et al., T5 (2020), section 3.1.4; ``random_spans_noise_mask`` of its code.
    """
    num_noise, num_spans = span_counts(lengths, density, mean_length)
    num_kept = lengths - num_noise
    for_kept = _within(lengths) < np.repeat(num_kept, lengths)
    runs = np.stack(
        [
            _random_parts(num_kept, num_spans, numbers[for_kept]),
            _random_parts(num_noise, num_spans, numbers[~for_kept]),
        ],
        axis=1,
    )
    return np.repeat(np.tile([False, True], len(runs)), runs.ravel())


def _random_parts(sizes: np.ndarray, counts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The sizes of ``counts`` parts, none empty, of each of some stretches, one stretch after the other.

    A part begins with the first item and with those that have the least numbers. An empty stretch is one empty part.
    """
    within = _within(sizes)
    stretches = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((np.where(within > 0, numbers, -1.0), stretches))
    begins = np.empty(len(numbers), bool)
    begins[order] = within < np.repeat(counts, sizes)
    begun = np.cumsum(begins)  # by now, the empty ones apart
    empty_before = np.cumsum(sizes == 0)
    return np.bincount(begun - 1 + np.repeat(empty_before, sizes), minlength=int(counts.sum()))


def cut_spans(
    tokens: np.ndarray, lengths: np.ndarray, noise: np.ndarray, sentinel_ids: Sequence[int], eos_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """What is left of texts and what was cut out of them, as flat arrays of one text after the other.

    Of a text ``a b c d e`` without ``b c`` and ``e`` they are ``a S0 d S1 EOS`` and ``S0 b c S1 e EOS``: no sentinel
    ends the second, as in T5's code; figure 2 of the paper has one more.

    Args:
      tokens: int32 [tokens], of all texts.
      lengths: [texts], none 0.
      noise: [tokens] bool, what to cut out.
      sentinel_ids: at least as many as a text has spans.
    """
    within, ends = _within(lengths), np.cumsum(lengths)
    opens = noise & ~np.append(False, noise[:-1] & (within[1:] > 0))
    before = np.cumsum(opens)
    number = before - np.repeat(before[ends - lengths] - opens[ends - lengths], lengths) - 1  # of a span, in its text
    sentinels = np.asarray(sentinel_ids, np.int32)[number[opens]]

    left = tokens.copy()
    left[opens] = sentinels
    stays = ~noise | opens
    left = np.insert(left[stays], np.cumsum(stays)[ends - 1], eos_id)

    # A sentinel stands before the first token of its span, EOS behind the last of a text, which may be in one place.
    places = np.cumsum(noise)
    closing = np.full(len(lengths), eos_id, np.int32)
    at = np.concatenate([places[ends - 1], places[opens] - 1])
    return left, np.insert(tokens[noise], at, np.concatenate([closing, sentinels]))


class SpanCorruptionPipeline:
    """Batches of texts with spans cut out: ``batch(n)`` depends on nothing but the arguments and n.

    Attributes:
      num_batches: per epoch.
    """

    def __init__(
        self,
        pieces: Pieces,
        plan: Plan,
        tokenizer: Tokenizer,
        density: float,
        mean_length: float,
        *,
        seed: int,
        fixed: bool = False,
    ):
        """
        Args:
          plan: of pairs of the lengths that :func:`corrupted_lengths` gives.
          density: as for :func:`span_counts`, as ``mean_length``.
          seed: of the spans.
          fixed: whether each text loses the same spans in every batch, or fresh ones.
        """
        self._pieces = pieces
        self._plan = plan
        self._tokenizer = tokenizer
        self._noise = (density, mean_length)
        self._numbers = RandomNumbers(seed, fixed=fixed, kinds=1)
        self.num_batches = plan.num_batches

    def steps_of_shapes(self) -> tuple[int, ...]:
        """Of each shape that a batch can have the first step with it, ascending."""
        return self._plan.steps_of_shapes()

    def size(self, step: int) -> tuple[int, int]:
        """Rows of batch number ``step``, and positions of the longer side."""
        return self._plan.batch(step).size

    def batch(self, step: int, rows: slice = ALL_ROWS) -> Seq2SeqBatch:
        """Batch number ``step``, counted from 0 across epochs, or some rows of it."""
        return self.numbered_batch(step, rows)[1]

    def numbered_batch(self, step: int, rows: slice = ALL_ROWS) -> tuple[Layout, Seq2SeqBatch]:
        """The same, and which texts stand where."""
        whole = self._plan.batch(step)
        layout = whole.of_rows(rows)
        lengths, tokens = self._pieces.lengths[layout.examples], self._pieces.gather(layout.examples)
        [numbers] = self._numbers(step, whole, self._pieces.lengths, rows)
        noise = noise_mask(lengths, *self._noise, numbers)
        source_tokens, target_tokens = cut_spans(
            tokens, lengths, noise, self._tokenizer.sentinel_ids, self._tokenizer.eos_id
        )
        source_lengths, target_lengths = corrupted_lengths(lengths, *self._noise)
        pad_id, bos_id = self._tokenizer.pad_id, self._tokenizer.bos_id
        source, target = (source_tokens, source_lengths), (target_tokens, target_lengths)
        return layout, seq2seq_batch(layout, source, target, (pad_id, pad_id), bos_id)


# Lines in which a user typed what is missing


def encode_marked(tokenizer: Tokenizer, lines: Sequence[str], marks: Mapping[str, int]) -> list[list[int]]:
    """The ids of lines in which some strings stand for ids: each as if it had taken the place of a word, or a part.

    Args:
      marks: the strings and their ids. Where the vocabulary's pieces begin with the space before them, a space before
        a mark belongs to it.
    """
    pattern = re.compile("(" + "|".join(map(re.escape, marks)) + ")")
    encode = tokenizer.encode
    takes_space = encode("a b") != encode("a ") + encode("b")
    parts = [pattern.split(line) for line in lines]
    texts: list[str] = []
    for split in parts:
        for place, text in enumerate(split[::2]):
            is_last = place == len(split) // 2
            text = text if is_last or not takes_space else text.removesuffix(" ")
            # Many vocabularies put a space before a text: a newline keeps what stands within a line from it.
            texts.append("\n" + text if place else text)
    encoded = iter(tokenizer.encode_batch(texts))
    newline = encode("\n")

    def of_line(split: list[str]) -> Iterator[int]:
        yield from next(encoded)
        for mark in split[1::2]:
            yield marks[mark]
            ids = next(encoded)
            yield from ids[len(newline) :] if ids[: len(newline)] == newline else ids

    return [list(of_line(split)) for split in parts]


def _within(lengths: np.ndarray) -> np.ndarray:
    """0, 1, 2, ... within each of some stretches, one after the other."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
