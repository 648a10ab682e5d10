"""Vocabularies of other projects: their ids exactly, no special id from any text, nothing lost between two runs."""

import base64
import gzip
import io
import json

import pytest
import sentencepiece
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from num2words import num2words
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.shared_data import shared_data
from transformer.data.pretrained_tokenizers import HuggingFaceTokenizer, MarianTokenizer, load_pretrained
from transformer.data.tokenizer import ExtraIdsTokenizer, Tokenizer
from transformer.data.vocabularies import load_tokenizer, load_tokenizers, save_tokenizers
from transformer.types import UserError

TEXT = [f"{num2words(i * 37)} old cats  see {i * 101} houses, {chr(97 + i % 26)}! <s> </s> <pad>" for i in range(199)]
SPECIAL_LOOKING = (
    "<s>", "</s>", "<pad>", "<unk>", "<|endoftext|>", "<|im_start|>", "<extra_id_0>", "<extra_id_10>", "[CLS]", "[SEP]",
    "[PAD]", "[MASK]", "[UNK]", "<mask>",
)  # fmt: skip
PARTS = st.lists(st.sampled_from([*SPECIAL_LOOKING, "a", "b", " ", "<", "/s>", "[", "MASK]", "cats", "\n"]), max_size=9)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def gpt2(special=("<|endoftext|>", "<|im_start|>"), alphabet=True):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=331, special_tokens=list(special), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
    )  # fmt: skip
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def llama():
    """As converted from SentencePiece: bytes for unknown characters, BOS before a text, merges that make "</s>"."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=503, special_tokens=[*special, *BYTES], show_progress=False)
    tokenizer.train_from_iterator((word for line in TEXT for word in line.split()), trainer)
    strip = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    parts = json.loads(tokenizer.to_str())
    parts["model"]["byte_fallback"] = True
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["content"] in special]
    vocab, merges = parts["model"]["vocab"], parts["model"]["merges"]
    vocab.setdefault("</", len(vocab))
    vocab.setdefault("</s", len(vocab))
    parts["model"]["merges"] = [*[["<", "/"], ["</", "s"], ["</s", ">"]], *merges]
    return tokenizers.Tokenizer.from_str(json.dumps(parts))


def t5():
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=113, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens([f"<extra_id_{number}>" for number in range(10, -1, -1)])
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    return tokenizer


def bert():
    characters = sorted(set("".join(TEXT).lower()) - {" "})
    words = sorted({word for line in TEXT for word in line.split() if word.isalpha()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{c}" for c in characters), *words]
    return "\n".join(dict.fromkeys(pieces)) + "\n"


def sentencepiece_model(lines, vocab_size, **ids):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=vocab_size, minloglevel=2, num_threads=1, **ids
    )
    return model.getvalue()


def write(folder, **files):
    """Files by name, in which __ stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model folder of every kind."""
    root = tmp_path_factory.mktemp("models")
    models_of_sides = [sentencepiece_model(lines, size) for lines, size in ((TEXT, 89), (map(str.upper, TEXT), 83))]
    pieces = {"</s>": 0, "<unk>": 1}
    for model in models_of_sides:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        for i in range(3, processor.get_piece_size()):
            pieces.setdefault(processor.id_to_piece(i), len(pieces))
    pieces[">>fra<<"] = len(pieces)
    pieces["<pad>"] = len(pieces)
    t5_model = sentencepiece_model(TEXT, 97, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    return {
        "gpt2": write(
            root / "gpt2",
            tokenizer__json=gpt2().to_str(),
            tokenizer_config__json={"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"},
        ),
        "llama": write(
            root / "llama",
            tokenizer__json=llama().to_str(),
            special_tokens_map__json={"eos_token": {"content": "</s>"}, "bos_token": {"content": "<s>"}},
        ),
        "t5": write(root / "t5", tokenizer__json=t5().to_str(), config__json={"decoder_start_token_id": 0}),
        "t5_model": write(root / "t5_model", spiece__model=t5_model),
        "bert": write(root / "bert", vocab__txt=bert()),
        "marian": write(
            root / "marian", source__spm=models_of_sides[0], target__spm=models_of_sides[1], vocab__json=pieces
        ),
    }


KINDS = ("gpt2", "llama", "t5", "t5_model", "bert", "marian")


@pytest.fixture(scope="module")
def loaded(folders):
    return {kind: load_pretrained(folder) for kind, folder in folders.items()}


@pytest.fixture(scope="module", params=KINDS)
def pair(request, loaded):
    return loaded[request.param]


def special_ids(tokenizer):
    ids = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id, *tokenizer.sentinel_ids}
    return ids - {tokenizer.unk_id}


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
@example(" two  spaces \t\r\n\x00\x85\u2028\ufeff")
@example("".join(SPECIAL_LOOKING))
def test_bytes_bring_every_text_back(loaded, text):
    tokenizer = loaded["gpt2"][0]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert special_ids(tokenizer).isdisjoint(ids) and tokenizer.unk_id not in ids


@settings(max_examples=100, deadline=None)
@given(parts=PARTS)
@example(["</s>", "<s>", "a", "</s>"])
def test_special_pieces_in_a_text_are_text(pair, parts):
    text = "".join(parts)
    for tokenizer in pair:
        ids = tokenizer.encode(text)
        assert special_ids(tokenizer).isdisjoint(ids)
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        assert tokenizer.encode_batch([text, "", "a"]) == [ids, tokenizer.encode(""), tokenizer.encode("a")]


@pytest.mark.parametrize("kind", ["llama", "t5", "bert"])
def test_special_pieces_in_a_text_are_read_back(loaded, kind):
    tokenizer, text = loaded[kind][0], "see </s> <s> <pad> cats"
    spaced = text if kind != "bert" else "see < / s > < s > < pad > cats"
    assert tokenizer.decode(tokenizer.encode(text)) == spaced


def test_the_package_alone_finds_special_pieces_in_texts(folders):
    """Why encode_special_tokens is not enough."""
    for kind in ("llama", "t5"):
        raw = tokenizers.Tokenizer.from_file(str(folders[kind] / "tokenizer.json"))
        raw.encode_special_tokens = True
        assert "</s>" in raw.encode("</s>" if kind == "t5" else "a</s>", add_special_tokens=False).tokens


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_ids_and_texts_are_those_of_the_package(folders, loaded, kind):
    raw, tokenizer = tokenizers.Tokenizer.from_file(str(folders[kind] / "tokenizer.json")), loaded[kind][0]
    for line in ("forty old cats see  nine houses", "see", " ", "é 😀" if kind != "t5" else "e"):
        ids = raw.encode(line, add_special_tokens=False).ids
        assert tokenizer.encode(line) == ids
        eos, bos, pad = tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id
        for with_special in ([bos, *ids, eos, pad, pad], [*ids[:1], eos, *ids[1:]], [eos], []):
            kept = [i for i in with_special if i != pad]
            assert tokenizer.decode(with_special) == raw.decode(kept, skip_special_tokens=True)


def test_what_is_to_be_guessed_is_seen(loaded):
    for kind in ("t5", "t5_model"):
        tokenizer = loaded[kind][0]
        first, second = tokenizer.sentinel_ids[:2]
        ids = [0, *tokenizer.encode("old"), first, *tokenizer.encode("see"), second, tokenizer.eos_id]
        assert tokenizer.decode(ids) == "old<extra_id_0> see<extra_id_1>"
    tokenizer = loaded["bert"][0]
    ids = [tokenizer.bos_id, *tokenizer.encode("old"), tokenizer.mask_id, *tokenizer.encode("see"), tokenizer.eos_id]
    assert tokenizer.decode(ids) == "old [MASK] see"


def test_the_interface(pair):
    for tokenizer in pair:
        assert isinstance(tokenizer, Tokenizer)
        assert tokenizer.eos_id not in (tokenizer.pad_id, tokenizer.bos_id)
        assert max(special_ids(tokenizer) - {None}) < tokenizer.vocab_size
        assert tokenizer.decode([tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id]) == ""
        assert tokenizer.decode([]) == "" and tokenizer.encode("") == []
        if tokenizer.unk_id >= 0:
            assert tokenizer.decode([tokenizer.unk_id]).strip()


def test_special_ids(loaded):
    def ids(kind):
        one = loaded[kind][0]
        return one.pad_id, one.bos_id, one.eos_id, one.unk_id, one.mask_id, one.start_id

    byte = json.loads(gpt2().to_str())["model"]["vocab"]["ÿ"]
    assert ids("gpt2") == (byte, byte, 0, -1, None, None)
    assert ids("llama") == (3 + 255, 1, 2, 0, None, 1)
    assert ids("t5") == (0, 0, 1, 2, 113, None)
    assert loaded["t5"][0].sentinel_ids == tuple(range(123, 112, -1))
    assert ids("t5_model") == (0, 0, 1, 2, 97, 1)
    assert loaded["t5_model"][0].sentinel_ids == tuple(range(196, 96, -1))
    assert ids("bert") == (0, 2, 3, 1, 4, None)
    size = loaded["marian"][0].vocab_size
    assert ids("marian") == (size - 1, size - 1, 0, 1, None, 0)


def test_both_sides_are_one_object_but_for_marian(loaded):
    for kind in KINDS:
        assert (loaded[kind][0] is loaded[kind][1]) == (kind != "marian")
        assert loaded[kind][0].fingerprint == loaded[kind][1].fingerprint
    assert len({loaded[kind][0].fingerprint for kind in KINDS}) == len(KINDS)


def test_saved_and_loaded_they_are_the_same(pair, tmp_path):
    save_tokenizers(tmp_path, pair)
    again = load_tokenizers(tmp_path)
    lines = [*TEXT[:7], "".join(SPECIAL_LOOKING), "", "é 😀", ">>fra<< CATS"]
    for one, other in zip(pair, again, strict=True):
        for name in ("vocab_size", "pad_id", "bos_id", "eos_id", "unk_id", "mask_id", "sentinel_ids", "start_id"):
            assert getattr(one, name) == getattr(other, name)
        assert one.fingerprint == other.fingerprint
        encoded = one.encode_batch(lines)
        assert other.encode_batch(lines) == encoded
        assert [other.decode(ids) for ids in encoded] == [one.decode(ids) for ids in encoded]
        assert ExtraIdsTokenizer(other, 3).vocab_size == one.vocab_size + 3


def test_everything_that_decides_ids_is_in_the_fingerprint():
    text = gpt2().to_str()
    made = [
        HuggingFaceTokenizer(text, eos_id=0),
        HuggingFaceTokenizer(text, eos_id=0, start_id=0),
        HuggingFaceTokenizer(text, eos_id=0, pad_id=1),
        HuggingFaceTokenizer(text, eos_id=1),
        HuggingFaceTokenizer(gpt2(("<|endoftext|>", "<|im_end|>")), eos_id=0),
    ]
    assert len({one.fingerprint for one in made}) == len(made)
    assert HuggingFaceTokenizer(tokenizers.Tokenizer.from_str(text), eos_id=0).fingerprint == made[0].fingerprint


def test_padding_is_what_no_model_needs():
    text = gpt2().to_str()
    byte = json.loads(text)["model"]["vocab"]["ÿ"]
    assert HuggingFaceTokenizer(text, eos_id=0, pad_id=1).pad_id == 1
    for pad_id in (None, 0):  # EOS is none
        tokenizer = HuggingFaceTokenizer(text, eos_id=0, pad_id=pad_id)
        assert (tokenizer.pad_id, tokenizer.vocab_size) == (byte, 331)
        assert byte not in tokenizer.encode("ÿ \xff") and tokenizer.decode(tokenizer.encode("ÿ")) == "ÿ"

    without_bytes = gpt2(("<eos>", "<one>", "<two>"), alphabet=False)
    tokenizer = HuggingFaceTokenizer(without_bytes, eos_id=0, bos_id=2)
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.vocab_size) == (1, 2, without_bytes.get_vocab_size())
    assert HuggingFaceTokenizer(gpt2(("<one>", "<eos>"), alphabet=False), eos_id=1, bos_id=1, pad_id=1).pad_id == 0
    tokenizer = HuggingFaceTokenizer(gpt2(("<eos>",), alphabet=False), eos_id=0, bos_id=0)
    assert tokenizer.pad_id == tokenizer.bos_id == tokenizer.vocab_size - 1 == gpt2(("<eos>",), False).get_vocab_size()
    assert tokenizer.decode([tokenizer.pad_id, *tokenizer.encode("cats")]) == "cats"


def test_files_cut_nothing_pad_nothing_and_draw_nothing(tmp_path, loaded):
    tokenizer = gpt2()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=17)
    parts = json.loads(tokenizer.to_str())
    parts["model"]["dropout"] = 0.5
    folder = write(tmp_path, tokenizer__json=parts, tokenizer_config__json={"eos_token": "<|endoftext|>"})
    found, _ = load_pretrained(folder)
    assert found.encode_batch(["cats", *TEXT]) == loaded["gpt2"][0].encode_batch(["cats", *TEXT])
    assert found.encode(TEXT[3]) == loaded["gpt2"][0].encode(TEXT[3])


def test_pieces_with_a_use_are_special_whatever_the_file_says():
    tokenizer = gpt2()
    tokenizer.add_tokens(["thirty"])  # not special: the package finds it in texts
    eos_id = tokenizer.token_to_id("thirty")
    assert tokenizer.encode("a thirty").ids[-1] == eos_id
    found = HuggingFaceTokenizer(tokenizer, eos_id=eos_id)
    assert found.encode("a thirty") == gpt2().encode("a thirty").ids
    assert found.decode([*found.encode("a thirty"), eos_id]) == "a thirty"


def test_an_end_that_is_called_unknown_too_is_the_end():
    tokenizer = gpt2()
    tokenizer.model.unk_token = "<|endoftext|>"  # as GPT-2's is
    assert HuggingFaceTokenizer(tokenizer, eos_id=0).unk_id == -1
    assert HuggingFaceTokenizer(tokenizer, eos_id=1).unk_id == 0


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config__json": {"eos_token": "<two>"}}, (2, None)),
        ({"tokenizer_config__json": {"eos_token": {"content": "<two>"}, "bos_token": "<one>"}}, (2, 1)),
        ({"tokenizer_config__json": {"sep_token": "<two>", "cls_token": "<one>", "eos_token": None}}, (2, 1)),
        ({"special_tokens_map__json": {"eos_token": "<one>"}}, (1, None)),
        (
            {
                "special_tokens_map__json": {"eos_token": "<one>"},
                "tokenizer_config__json": {"eos_token": "<two>"},
                "config__json": {"eos_token_id": 3, "bos_token_id": 3},
            },
            (2, 3),
        ),
        ({"config__json": {"eos_token_id": 3}, "generation_config__json": {"eos_token_id": [2, 3]}}, (2, None)),
        ({"config__json": {"eos_token_id": 50256, "bos_token_id": -1}}, (0, None)),
        ({}, (0, None)),
        ({"tokenizer_config__json": {"eos_token": "<three>"}, "config__json": {"decoder_start_token_id": 2}}, (3, 2)),
    ],
)
def test_where_special_ids_are_named(tmp_path, files, expected):
    text = gpt2(("<|endoftext|>", "<one>", "<two>", "<three>")).to_str()
    found, _ = load_pretrained(write(tmp_path, tokenizer__json=text, **files))
    eos_id, bos_id = expected
    assert (found.eos_id, found.bos_id) == (eos_id, found.pad_id if bos_id is None else bos_id)
    beside = load_tokenizer(tmp_path / "tokenizer.json")
    assert beside.fingerprint == found.fingerprint


def test_of_several_ends_the_others_are_named(tmp_path, caplog):
    special = ("<|endoftext|>", "<|im_start|>", "<|eot|>")
    ids = [gpt2(special).token_to_id(piece) for piece in special]
    text = gpt2(special).to_str()
    found, _ = load_pretrained(write(tmp_path, tokenizer__json=text, generation_config__json={"eos_token_id": ids[1]}))
    assert found.eos_id == ids[1] and not caplog.records
    several = {"eos_token_id": [ids[2], ids[0], 99_999]}
    found, _ = load_pretrained(write(tmp_path, tokenizer__json=text, generation_config__json=several))
    assert found.eos_id == ids[2]
    assert "only '<|eot|>' is heeded here: outputs will go on after '<|endoftext|>'" in caplog.text


def test_a_document_begins_after_bos_where_the_post_processor_says_so(tmp_path):
    tokenizer, names = llama(), {"eos_token": "</s>", "bos_token": "<s>", "add_bos_token": True}
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A $B", [("</s>", 2)])
    folder = write(tmp_path, tokenizer__json=tokenizer.to_str(), tokenizer_config__json=names)
    assert load_pretrained(folder)[0].start_id is None  # as transformers, which does not read add_bos_token either


# BERT


@pytest.fixture(scope="module")
def bert_uncased(tmp_path_factory):
    content = gzip.decompress((shared_data("tokenizer-fixtures") / "bert-uncased.vocab.txt.gz").read_bytes())
    return load_tokenizer(write(tmp_path_factory.mktemp("bert"), vocab__txt=content) / "vocab.txt")


def test_encodings_of_bert(bert_uncased):
    cases = json.loads((shared_data("tokenizer-fixtures") / "bert-uncased.encodings.json").read_text())
    encoded = bert_uncased.encode_batch([case["text"] for case in cases])
    bos_id, eos_id = bert_uncased.bos_id, bert_uncased.eos_id
    assert [[bos_id, *ids, eos_id] for ids in encoded] == [case["ids"] for case in cases]
    assert bert_uncased.vocab_size == 30_522 and bert_uncased.mask_id == 103


def test_encodings_of_minilm(bert_uncased):
    golden = json.loads((shared_data("minilm-golden") / "sentences.json").read_text())
    encoded = bert_uncased.encode_batch(golden["sentences"])
    assert [[101, *ids, 102] for ids in encoded] == golden["ids"]


def test_upper_case(tmp_path):
    upper = bert() + "Cats\n"
    alone = load_tokenizer(write(tmp_path / "a", vocab__txt=upper) / "vocab.txt")
    assert alone.decode(alone.encode("Cats cats")) == "Cats cats"
    settings = {"do_lower_case": True}
    told = load_tokenizer(write(tmp_path / "b", vocab__txt=upper, tokenizer_config__json=settings) / "vocab.txt")
    assert told.decode(told.encode("Cats cats")) == "cats cats"
    lower = load_tokenizer(write(tmp_path / "c", vocab__txt=bert().replace("\n", "\r\n")) / "vocab.txt")
    assert lower.decode(lower.encode("Cats, cats")) == "cats, cats"


# Marian


def test_marian_looks_pieces_up(folders, loaded):
    vocabulary = json.loads((folders["marian"] / "vocab.json").read_text())
    for side, (name, line) in enumerate((("source.spm", TEXT[3]), ("target.spm", TEXT[3].upper()))):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folders["marian"] / name))
        tokenizer = loaded["marian"][side]
        ids = [vocabulary[piece] for piece in processor.encode(line, out_type=str)]
        assert tokenizer.encode(line) == ids and tokenizer.unk_id not in ids
        assert tokenizer.decode([tokenizer.pad_id, *ids, tokenizer.eos_id]) == " ".join(line.split())
        assert tokenizer.unk_id in tokenizer.encode("é")
    other = [tokenizer.encode("old CATS") for tokenizer in loaded["marian"]]
    assert other[0] != other[1]


def test_marian_takes_a_language_code_at_the_start_of_a_line(loaded):
    tokenizer = loaded["marian"][0]
    cats = tokenizer.encode("cats")
    assert tokenizer.encode(">>fra<< cats") == [tokenizer.vocab_size - 2, *cats]
    assert tokenizer.vocab_size - 2 not in tokenizer.encode("cats >>fra<<") + tokenizer.encode(">>deu<< cats")


def test_marian_does_not_take_unknown_characters_for_a_special_piece():
    model = sentencepiece_model(["xyz yzx zxy"], 9, hard_vocab_limit=False)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert processor.encode("<pad>", out_type=str)[-1] == "<pad>"
    tokenizer = MarianTokenizer((model, model), {"</s>": 0, "<unk>": 1, "▁": 2, "<pad>": 3}, 0)
    assert tokenizer.encode("<pad>") == [2, 1]


# What cannot be read


def user_error(function, *arguments, **named):
    with pytest.raises(UserError) as error:
        function(*arguments, **named)
    return str(error.value)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ["tokenizer.json", "spiece.model", "vocab.txt", "source.spm"]),
        ({"tokenizer__json": "{"}, ["tokenizer.json is no tokenizer.json"]),
        ({"tokenizer__json": {"model": {"type": "new"}}}, ["tokenizer.json is no tokenizer.json"]),
        ({"tokenizer__json": {}}, ["tokenizer.json"]),
        ({"vocab__txt": "[UNK]\na\nb\na\n"}, ["vocab.txt:4", "'a'", "line 2"]),
        ({"vocab__txt": "a\nb\n"}, ["vocab.txt", "[UNK]"]),
        ({"vocab__txt": "[UNK]\na\n"}, ["vocab.txt", "eos_token"]),
        ({"vocab__txt": b"[UNK]\n\xff\n"}, ["vocab.txt", "UTF-8"]),
        ({"spiece__model": b"\n\xffno model"}, ["spiece.model", "SentencePiece"]),
        ({"vocab__txt": "[UNK]\n[SEP]", "config__json": "["}, ["config.json", "no JSON"]),
        ({"vocab__txt": "[UNK]\n[SEP]", "config__json": "[]"}, ["config.json", "no JSON object"]),
        ({"vocab__txt": "[UNK]\n[SEP]", "config__json": {"decoder_start_token_id": 1}}, ["vocab.txt", "EOS"]),
        ({"source__spm": b""}, ["target.spm"]),
        ({"source__spm": b"", "target__spm": b"", "vocab__json": {"a": 0}}, ["source.spm", "SentencePiece"]),
        ({"source__spm": b"", "tokenizer_config__json": {"separate_vocabs": True}}, ["separate_vocabs"]),
    ],
)
def test_folders_that_cannot_be_read(tmp_path, files, expected):
    message = user_error(load_pretrained, write(tmp_path / "folder", **files))
    assert str(tmp_path / "folder") in message
    assert all(part in message for part in expected), message


def test_marian_without_a_piece_that_is_needed(folders, tmp_path):
    models = {f"{side}__spm": (folders["marian"] / f"{side}.spm").read_bytes() for side in ("source", "target")}
    message = user_error(load_pretrained, write(tmp_path, vocab__json={"</s>": 0, "a": 1}, **models))
    assert str(tmp_path) in message and "no <pad> and no <unk>" in message


def test_ids_that_are_no_pieces():
    message = user_error(HuggingFaceTokenizer, gpt2(), eos_id=331, name="a.gguf")
    assert "a.gguf" in message and "eos_id=331" in message and "331 pieces" in message


@pytest.mark.parametrize("content", ["{}", '{"kind": "new"}', '{"kind": "marian"}', '{"kind": "huggingface"}', "{"])
def test_saved_files_that_are_not_whole(tmp_path, content):
    (tmp_path / "saved").write_text(content)
    assert str(tmp_path / "saved") in user_error(load_tokenizer, tmp_path / "saved")


def test_a_saved_file_says_what_it_holds(loaded):
    saved = json.loads(loaded["marian"][1].content)
    assert saved["kind"] == "marian" and saved["side"] == 1
    models = tuple(base64.b64decode(model) for model in saved["models"])
    assert MarianTokenizer(models, saved["vocabulary"], 1).content == loaded["marian"][1].content
