"""What people are shown of the pieces of a vocabulary."""

from collections.abc import Callable

from transformer.data.tokenizer import Tokenizer

SPACE = "▁"  # as in SentencePiece's pieces


def names_of_pieces(tokenizer: Tokenizer) -> Callable[[int], str]:
    """A function from an id to its text with spaces made visible, or its role in ``<>``."""
    roles = {tokenizer.unk_id: "<unk>", tokenizer.mask_id: "<mask>", tokenizer.pad_id: "<pad>"}
    roles |= {tokenizer.bos_id: "<bos>", tokenizer.eos_id: "<eos>"}
    # Many tokenizers leave out the space before a text: a letter keeps what stands behind it as it is.
    letter = tokenizer.encode("a")
    known = len(tokenizer.decode(letter))

    def name(i: int) -> str:
        if i in roles:
            return roles[i]
        if not 0 <= i < tokenizer.vocab_size:
            return f"<{i}, which is no piece>"
        text = tokenizer.decode([*letter, i])[known:]
        return f"<{i}>" if not text or "\ufffd" in text else on_one_line(text).replace(" ", SPACE)

    return name


def on_one_line(text: str) -> str:
    """With what would end a line written out."""
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
