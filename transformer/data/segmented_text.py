"""Text that was split into pieces before it came here, as public sets of pairs are: ``a trans@@ lation``."""

import json
import re
from collections.abc import Iterable, Sequence

from transformer.data.tokenizer import BOS_ID, EOS_ID, NUM_SPECIAL, PAD_ID, UNK_ID, SavedTokenizer

SPECIAL_LINES = ("<unk>", "<s>", "</s>", "<pad>")  # of lists of pieces: here they have ids of their own
JOINED = re.compile(r"@@( |$)")


class SegmentedTextTokenizer(SavedTokenizer):
    """Pieces stand between spaces, and ``@@`` ends those that go on in the next.

    Inputs must be split in the same way, and tokenised before that if the text was. Outputs and references are joined
    to words again, which then are tokenised as the text was: a score of them is no score of raw text. The unknown id
    decodes to U+FFFD: a loss is seen, not hidden.

    Args:
      pieces: the vocabulary; special ids come before them.

    Reference: Sennrich et al. 2016, and the files that ``subword-nmt`` and ``fairseq`` write.
    """

    pad_id, bos_id, eos_id, unk_id, start_id = PAD_ID, BOS_ID, EOS_ID, UNK_ID, EOS_ID

    def __init__(self, pieces: Iterable[str]):
        known = list(dict.fromkeys(pieces))
        super().__init__(json.dumps({"kind": "segmented_text", "pieces": known}).encode())
        self._pieces = ["", "", "", "\ufffd", *known]
        self.vocab_size = len(self._pieces)
        self._ids = {piece: i for i, piece in enumerate(known, start=NUM_SPECIAL)}

    def encode(self, line: str) -> list[int]:
        return [self._ids.get(piece, UNK_ID) for piece in line.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return self.join(" ".join(self._pieces[i] for i in ids if i not in (PAD_ID, BOS_ID, EOS_ID)))

    @staticmethod
    def join(line: str) -> str:
        """The words of a line of pieces."""
        return JOINED.sub("", line)


def load_piece_list(content: bytes) -> SegmentedTextTokenizer | None:
    """The vocabulary of text that is split already: a piece a line, which a count may follow; None if it is none."""
    try:
        lines = [line.split(" ") for line in content.decode().split("\n") if line.strip()]
    except UnicodeDecodeError:
        return None
    pieces = [
        line[0].rstrip("\r") for line in lines if len(line) == 1 or (len(line) == 2 and line[1].strip().isdecimal())
    ]
    if len(pieces) < len(lines) or not any(piece.endswith("@@") for piece in pieces):
        return None
    return SegmentedTextTokenizer(piece for piece in pieces if piece not in SPECIAL_LINES)
