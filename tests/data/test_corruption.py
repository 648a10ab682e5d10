"""What is masked or cut out comes back: from an input and its targets follows the text, whatever is drawn."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.config import DataConfig
from transformer.data.batching import document_plan, evaluation_plan, training_plan
from transformer.data.corruption import (
    MaskedTokenPipeline,
    Pieces,
    SpanCorruptionPipeline,
    TokenMasker,
    corrupted_lengths,
    cut_spans,
    encode_marked,
    noise_mask,
    span_counts,
    special_ids,
    word_bounds,
)
from transformer.data.store import Tokens
from transformer.data.tokenizer import ByteTokenizer, CharacterTokenizer, ExtraIdsTokenizer
from transformer.data.vocabularies import train_sentencepiece
from transformer.types import UserError

LINES = [
    f"the {word}ing of {number} small words, and {word}s" for number, word in enumerate(["read", "walk", "sing"])
] * 7
PAD, BOS, EOS, UNK = 0, 1, 2, 3


@pytest.fixture(scope="module")
def pieces():
    return ExtraIdsTokenizer(train_sentencepiece(LINES, "bpe", 320), 7)


@pytest.fixture(scope="module")
def characters():
    return ExtraIdsTokenizer(CharacterTokenizer("abcdefghijklmnopqrstuvwxyz ,\n"), 5)


def corpus(lengths, vocab_size, special, seed=0):
    """Documents of random ordinary pieces, each closed by EOS."""
    rng = np.random.default_rng(seed)
    ordinary = np.setdiff1d(np.arange(vocab_size), special)
    documents = [np.append(rng.choice(ordinary, length), EOS) for length in lengths]
    return Tokens(np.concatenate(documents).astype(np.uint16), np.cumsum([0, *map(len, documents)]))


def restored(batch):
    """The rows of a masked batch with what was to be guessed in its place."""
    tokens = batch.input_tokens.copy()
    for row, places in enumerate(batch.masked_positions):
        real = batch.loss_weights[row] > 0
        tokens[row, places[real]] = batch.target_tokens[row][real]
    return tokens


# Documents to texts


@given(st.lists(st.integers(0, 23), min_size=1, max_size=9).filter(any), st.integers(1, 11))
def test_texts_are_the_documents_without_eos(lengths, most):
    documents = corpus(lengths, 97, range(7))
    texts = Pieces(documents, most)
    assert texts.lengths.max() <= most and texts.lengths.min() >= 1
    joined = [[] for _ in lengths]
    for number, document in enumerate(texts.documents):
        assert len(joined[document]) % most == 0  # only the last is shorter
        joined[document] += texts.gather(np.array([number])).tolist()
    assert joined == [documents[number][:-1].tolist() for number in range(len(lengths))]
    order = np.arange(len(texts.lengths))[::-1]
    together = np.concatenate([texts.gather(np.array([number])) for number in order])
    np.testing.assert_array_equal(texts.gather(order), together)


# Masked language modelling


def masked_pipeline(tokenizer, lengths, *, batching="pack", seed=3, whole_words=False, fixed=False, documents=None):
    documents = documents or corpus(lengths, tokenizer.vocab_size, special_ids(tokenizer))
    config = DataConfig(batching=batching, tokens_per_batch=5 * 41, max_target_length=41, num_buckets=3)
    texts = Pieces(documents, 39)
    masker = TokenMasker(tokenizer, rate=0.15, whole_words=whole_words)
    plan = (
        evaluation_plan(texts.lengths + 2, texts.lengths + 2, 5 * 41)
        if fixed
        else document_plan(config, texts.lengths + 2, seed)
    )
    return MaskedTokenPipeline(texts, plan, tokenizer, masker, seed=seed, fixed=fixed), texts


@given(
    st.lists(st.integers(1, 97), min_size=1, max_size=23),
    st.sampled_from(["bucket", "pack"]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_the_text_comes_back_from_input_and_targets(pieces, lengths, batching, whole_words, seed):
    pipeline, texts = masked_pipeline(pieces, lengths, batching=batching, whole_words=whole_words, seed=seed)
    seen = []
    for step in range(pipeline.num_batches):
        batch = pipeline.batch(step)
        assert batch.input_tokens.shape in pipeline.shapes
        tokens, real = restored(batch), batch.segment_ids > 0
        assert (tokens[~real] == PAD).all() and (batch.input_tokens[~real] == PAD).all()
        for row in range(len(tokens)):
            places = batch.masked_positions[row][batch.loss_weights[row] > 0]
            assert (np.diff(places) > 0).all()
            assert not np.isin(tokens[row, places], special_ids(pieces)).any()
            for segment in range(1, batch.segment_ids[row].max() + 1):
                inside = np.flatnonzero(batch.segment_ids[row] == segment)
                text = tokens[row, inside]
                assert text[0] == BOS and text[-1] == EOS
                np.testing.assert_array_equal(batch.positions[row, inside], np.arange(len(text)))
                seen.append(text[1:-1].tolist())
                chosen, most = np.isin(places, inside).sum(), max(1, round(0.15 * (len(text) - 2)))
                assert 1 <= chosen <= most
                if not whole_words:
                    assert chosen == most
    assert sorted(seen) == sorted(texts.gather(np.array([i])).tolist() for i in range(len(texts.lengths)))


def test_of_the_masked_tokens_eight_in_ten_are_masks_one_is_random_and_one_stays(pieces):
    pipeline, _ = masked_pipeline(pieces, [39] * 97, batching="bucket")
    batches = [pipeline.batch(step) for step in range(20 * pipeline.num_batches)]
    given, target, place = [], [], []
    for batch in batches:
        real = batch.loss_weights > 0
        given.append(np.take_along_axis(batch.input_tokens, batch.masked_positions, axis=1)[real])
        target.append(batch.target_tokens[real])
        place.append(batch.masked_positions[real])
    given, target, place = map(np.concatenate, (given, target, place))
    assert len(given) == 20 * 97 * 6
    by_chance = 0.1 / (pieces.vocab_size - 4 - 7)  # a random piece that is the one that stood there
    for share, expected in (
        ((given == pieces.mask_id).mean(), 0.8),
        ((given == target).mean(), 0.1 + by_chance),
        (((given != pieces.mask_id) & (given != target)).mean(), 0.1 - by_chance),
    ):
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / len(given))
    drawn = given[(given != pieces.mask_id) & (given != target)]
    assert not np.isin(drawn, special_ids(pieces)).any()
    assert len(np.unique(drawn)) > 0.9 * (pieces.vocab_size - 11)
    counts = np.bincount(place, minlength=41)[1:40]  # every place is chosen as often as any other
    assert counts.min() > 0 and ((counts - counts.mean()) ** 2).sum() / counts.mean() < 39 + 4 * math.sqrt(2 * 39)


@pytest.mark.parametrize("batching", ["bucket", "pack"])
def test_a_fresh_mask_each_epoch_and_each_batch_from_seed_and_step_alone(pieces, batching):
    lengths = [39] * 5 + [7, 11, 13]
    pipeline, _ = masked_pipeline(pieces, lengths, batching=batching)
    steps = 3 * pipeline.num_batches
    batches = [pipeline.batch(step) for step in range(steps)]
    again, _ = masked_pipeline(pieces, lengths, batching=batching)
    for step in reversed(range(steps)):
        for one, other in zip(batches[step], again.batch(step), strict=True):
            np.testing.assert_array_equal(one, other)

    def masks(epoch):
        """The mask of each text."""
        found = {}
        for batch in batches[epoch * pipeline.num_batches : (epoch + 1) * pipeline.num_batches]:
            for row, tokens in enumerate(restored(batch)):
                for segment in range(1, batch.segment_ids[row].max() + 1):
                    inside = batch.segment_ids[row] == segment
                    found[tuple(tokens[inside])] = tuple(batch.input_tokens[row, inside])
        return found

    first, second = masks(0), masks(1)
    assert first.keys() == second.keys() and all(first[text] != second[text] for text in first if len(text) == 41)
    other, _ = masked_pipeline(pieces, lengths, batching=batching, seed=4)
    assert any((batch.input_tokens != other.batch(step).input_tokens).any() for step, batch in enumerate(batches))


def test_a_fixed_mask_does_not_depend_on_the_batch(pieces):
    """Nor on the step, nor on which texts come after it."""
    lengths = [39, 5, 23, 31, 17, 39]
    documents = corpus(lengths, pieces.vocab_size, special_ids(pieces))
    masker = TokenMasker(pieces, rate=0.15, whole_words=False)

    def masks(documents, tokens_per_batch):
        texts = Pieces(documents, 39)
        plan = evaluation_plan(texts.lengths + 2, texts.lengths + 2, tokens_per_batch)
        pipeline = MaskedTokenPipeline(texts, plan, pieces, masker, seed=3, fixed=True)
        found = {}
        for step in range(2 * plan.num_batches):
            layout, batch = pipeline.numbered_batch(step)
            for row, example in zip(layout.rows, layout.examples, strict=True):
                text = tuple(batch.input_tokens[row][batch.segment_ids[row] > 0].tolist())
                assert found.setdefault(int(example), text) == text
        return found

    whole = masks(documents, 41)
    assert whole == masks(documents, 500) and len(whole) == 6
    assert masks(documents.first(4), 99) == {number: whole[number] for number in range(4)}
    assert whole[0].count(pieces.mask_id) != 0 and whole[0] != whole[5]


def words_of(tokenizer, text):
    """The ids of a text and of each the number of its word: characters with the spaces before them, or a line's end."""
    ids = tokenizer.encode(text)
    starts = [len(tokenizer.decode(ids[:number])) for number in range(len(ids))]
    words = [match.span() for match in re.finditer(r" *[^ \n]+|\n", text)]
    return ids, [next(n for n, (start, end) in enumerate(words) if start <= place < end) for place in starts]


@pytest.mark.parametrize("name", ["pieces", "characters"])
def test_whole_words_are_masked_whole(name, request):
    tokenizer = request.getfixturevalue(name)
    text = "the zreadings of two small words, and\nwalking words, and the\nsmall zing, small words and reading"
    ids, words = words_of(tokenizer, text)
    masker = TokenMasker(tokenizer, rate=0.15, whole_words=True)
    tokens, lengths = np.array([BOS, *ids, EOS], np.int32), np.array([len(ids) + 2])
    rng, most = np.random.default_rng(5), round(0.15 * len(ids))
    sizes = np.bincount(words)
    assert max(sizes) > 2
    masked, counts = set(), []
    for _ in range(500):
        _, chosen = masker(tokens, lengths, rng.random((3, len(tokens))))
        assert not chosen[[0, -1]].any()
        hits = np.bincount(words, chosen[1:-1])
        assert ((hits == 0) | (hits == sizes)).all()
        masked |= set(np.flatnonzero(hits).tolist())
        counts.append(chosen.sum())
    assert masked == set(np.flatnonzero(sizes <= most).tolist())
    assert most - max(sizes) < np.mean(counts) <= max(counts) == most


def test_text_of_words_too_long_to_be_masked_whole_is_taken_apart(characters):
    masker = TokenMasker(characters, rate=0.15, whole_words=True)
    tokens = np.array([BOS, *characters.encode("abcdefghijklmnopqrst"), EOS], np.int32)
    chosen = masker(tokens, np.array([22]), np.random.default_rng(0).random((3, 22)))[1]
    assert chosen.sum() == 3 and not chosen[[0, -1]].any()


def test_unknown_pieces_are_never_masked(characters):
    masker = TokenMasker(characters, rate=0.15, whole_words=False)
    tokens = np.array([BOS, UNK, UNK, 5, UNK, EOS, BOS, UNK, EOS], np.int32)
    inputs, chosen = masker(tokens, np.array([6, 3]), np.random.default_rng(0).random((3, 9)))
    assert chosen.tolist() == [False] * 3 + [True] + [False] * 5
    np.testing.assert_array_equal(inputs[~chosen], tokens[~chosen])


def test_what_a_word_begins_with(pieces):
    opens, closes = word_bounds(pieces)
    for text, first in (("a the", True), ("the5", False), ("the,", False)):
        assert opens[pieces.encode(text)[-1]] == first, text
    newline = pieces.encode("a\n")[-1]
    assert opens[newline] and closes[newline] and closes.sum() == 3
    assert not opens[special_ids(pieces)].any()


def test_what_masking_needs():
    with pytest.raises(UserError, match=r"needs a tokenizer with a mask; set data\.extra_ids=1"):
        TokenMasker(ByteTokenizer(), rate=0.15, whole_words=False)
    with pytest.raises(UserError, match=r"data\.whole_words=True needs a tokenizer that knows spaces"):
        TokenMasker(ExtraIdsTokenizer(CharacterTokenizer("abc"), 1), rate=0.15, whole_words=True)
    assert TokenMasker(ExtraIdsTokenizer(ByteTokenizer(), 1), rate=0.15, whole_words=True).ordinary.sum() == 256


# Span corruption

NOISE = st.tuples(st.floats(0.0, 0.95), st.floats(1.0, 9.0))


@given(st.lists(st.integers(1, 131), min_size=1, max_size=11), NOISE, st.integers(0, 2**31))
def test_the_text_comes_back_from_what_is_left_and_what_was_cut_out(lengths, noise, seed):
    lengths, rng = np.array(lengths), np.random.default_rng(seed)
    tokens = rng.integers(10, 1000, lengths.sum()).astype(np.int32)
    sentinels = tuple(range(5000, 4800, -1))
    mask = noise_mask(lengths, *noise, rng.random(lengths.sum()))
    left, cut = cut_spans(tokens, lengths, mask, sentinels, EOS)
    left_lengths, cut_lengths = corrupted_lengths(lengths, *noise)
    assert (len(left), len(cut)) == (left_lengths.sum(), cut_lengths.sum())
    texts = np.split(tokens, np.cumsum(lengths)[:-1])
    lefts, cuts = (np.split(flat, np.cumsum(sizes)[:-1]) for flat, sizes in ((left, left_lengths), (cut, cut_lengths)))
    for text, left, cut, num_noise, num_spans in zip(texts, lefts, cuts, *span_counts(lengths, *noise), strict=True):
        assert left[-1] == cut[-1] == EOS and EOS not in left[:-1] and EOS not in cut[:-1]
        used = list(sentinels[:num_spans])
        assert [i for i in left if i > 4000] == [i for i in cut if i > 4000] == used
        assert len(cut) == num_noise + num_spans + 1
        spans, span = {}, None
        for token in cut[:-1].tolist():
            span = spans.setdefault(token, []) if token > 4000 else [*span, token] if span is None else span
            if token < 4000:
                span.append(token)
        assert all(spans.values())
        back = [token for item in left[:-1].tolist() for token in (spans[item] if item > 4000 else [item])]
        assert back == text.tolist()


@pytest.mark.parametrize("length", [2, 3, 5, 10, 30, 49, 50, 127, 511, 568])
@pytest.mark.parametrize(("density", "mean"), [(0.15, 3.0), (0.5, 3.0), (0.15, 10.0), (0.3, 2.0)])
def test_counts_are_those_of_t5(length, density, mean):
    """As the docstring of ``random_spans_noise_mask`` says, with rounding to even in float32 as in TensorFlow."""
    noise = int(np.round(np.float32(length) * np.float32(density)))
    noise = min(max(noise, 1), length - 1)
    spans = max(int(np.round(np.float32(noise) / np.float32(mean))), 1)
    found = span_counts(np.array([length]), density, mean)
    assert [int(count[0]) for count in found] == [noise, spans]
    mask = noise_mask(np.array([length]), density, mean, np.random.default_rng(length).random(length))
    assert mask.sum() == noise and not mask[0] and mask[-1]
    assert (np.diff(mask.astype(int)) == 1).sum() == spans


def test_all_divisions_are_equally_likely():
    """Of 7 tokens 3 in 2 spans, after 4 in 2 parts: 2 x 3 ways."""
    lengths = np.full(6_000, 7)
    masks = noise_mask(lengths, 0.45, 1.5, np.random.default_rng(1).random(42_000)).reshape(-1, 7)
    found, counts = np.unique(masks, axis=0, return_counts=True)
    assert len(found) == 6 and (np.abs(counts - 1_000) < 4 * math.sqrt(1_000 * 5 / 6)).all()


def test_a_literal_example():
    noise = np.array([False, True, True, False, True, True, False, False, True])
    left, cut = cut_spans(np.arange(10, 19, dtype=np.int32), np.array([5, 1, 3]), noise, (99, 98), EOS)
    assert left.tolist() == [10, 99, 13, 98, EOS, 99, EOS, 16, 17, 99, EOS]
    assert cut.tolist() == [99, 11, 12, 98, 14, EOS, 99, 15, EOS, 99, 18, EOS]


def span_pipeline(tokenizer, lengths, *, batching, seed=3, fixed=False):
    texts = Pieces(corpus(lengths, tokenizer.vocab_size, special_ids(tokenizer)), 40)
    config = DataConfig(batching=batching, tokens_per_batch=5 * 41, max_source_length=41, max_target_length=17)
    sizes = corrupted_lengths(texts.lengths, 0.15, 3.0)
    plan = evaluation_plan(*sizes, 5 * 41) if fixed else training_plan(config, *sizes, seed)
    return SpanCorruptionPipeline(texts, plan, tokenizer, 0.15, 3.0, seed=seed, fixed=fixed), texts


@pytest.mark.parametrize("batching", ["bucket", "pack"])
def test_batches_of_spans(pieces, batching):
    lengths = [40] * 7 + [97, 3, 1, 23]
    pipeline, texts = span_pipeline(pieces, lengths, batching=batching)
    steps = 2 * pipeline.num_batches
    batches = [pipeline.batch(step) for step in range(steps)]
    again, _ = span_pipeline(pieces, lengths, batching=batching)
    for step in reversed(range(steps)):
        for one, other in zip(batches[step], again.batch(step), strict=True):
            np.testing.assert_array_equal(one, other)

    def restored(epoch):
        found = {}
        for batch in batches[epoch * pipeline.num_batches : (epoch + 1) * pipeline.num_batches]:
            assert (batch.encoder_input_tokens[batch.encoder_segment_ids == 0] == PAD).all()
            np.testing.assert_array_equal(batch.decoder_loss_weights, batch.decoder_segment_ids > 0)
            for row in range(len(batch.encoder_input_tokens)):
                for segment in range(1, batch.encoder_segment_ids[row].max() + 1):
                    source = batch.encoder_input_tokens[row][batch.encoder_segment_ids[row] == segment]
                    inside = batch.decoder_segment_ids[row] == segment
                    target, shifted = batch.decoder_target_tokens[row, inside], batch.decoder_input_tokens[row, inside]
                    assert shifted.tolist() == [BOS, *target[:-1]]
                    np.testing.assert_array_equal(batch.decoder_positions[row, inside], np.arange(len(target)))
                    spans = np.split(target[:-1], np.flatnonzero(np.isin(target[:-1], pieces.sentinel_ids)))[1:]
                    by_sentinel = {int(span[0]): span[1:].tolist() for span in spans}
                    text = [t for item in source[:-1].tolist() for t in by_sentinel.get(item, [item])]
                    found[tuple(text)] = tuple(source)
        return found

    first, second = restored(0), restored(1)
    assert sorted(first) == sorted(tuple(texts.gather(np.array([i])).tolist()) for i in range(len(texts.lengths)))
    assert first.keys() == second.keys() and sum(first[text] != second[text] for text in first) >= 7
    assert first[max(first, key=len)][-1] == EOS


def test_fixed_spans_do_not_depend_on_the_batch(pieces):
    pipeline, texts = span_pipeline(pieces, [40, 40, 3, 23], batching="bucket", fixed=True)
    sizes = corrupted_lengths(texts.lengths, 0.15, 3.0)
    other = SpanCorruptionPipeline(texts, evaluation_plan(*sizes, 41), pieces, 0.15, 3.0, seed=3, fixed=True)

    def targets(pipeline):
        found = {}
        for step in range(pipeline.num_batches):
            layout, batch = pipeline.numbered_batch(step)
            for row, example in zip(layout.rows, layout.examples, strict=True):
                found[int(example)] = batch.decoder_target_tokens[row][batch.decoder_loss_weights[row] > 0].tolist()
        return found

    assert targets(pipeline) == targets(other) and len(targets(other)) == 4
    assert targets(pipeline)[0] != targets(pipeline)[1]


# Typed marks


def test_a_mark_takes_the_place_of_a_word_and_of_the_space_before_it(pieces):
    text = "the small words, and the reading of words\nand walks"
    ids, words = words_of(pieces, text)
    for number, match in enumerate(re.finditer(r" *([^ \n]+)|\n", text)):
        if not match[1]:
            continue
        line = text[: match.start(1)] + "<mask>" + text[match.end(1) :]
        first, last = words.index(number), len(words) - words[::-1].index(number)
        assert encode_marked(pieces, [line], {"<mask>": -7}) == [[*ids[:first], -7, *ids[last:]]], line


def test_marks_stand_where_they_are_typed(pieces, characters):
    marks = {"<extra_id_0>": -1, "<extra_id_1>": -2, "<extra_id_10>": -3}
    lines = ["a <extra_id_0>b<extra_id_10>", "", "abc", "<extra_id_1><extra_id_0> <extra_id_2>"]
    a, b, space = (characters.encode(text)[0] for text in "ab ")
    found = encode_marked(characters, lines, marks)
    assert found[:3] == [[a, space, -1, b, -3], [], characters.encode("abc")]
    assert found[3] == [-2, -1, *characters.encode(" <extra_id_2>")]
    the, comma = pieces.encode("the"), pieces.encode("a,")[-1]
    lines = ["the<extra_id_0>, the <extra_id_1> <extra_id_0>", "<extra_id_1>"]
    assert encode_marked(pieces, lines, marks) == [[*the, -1, comma, *the, -2, -1], [-2]]
