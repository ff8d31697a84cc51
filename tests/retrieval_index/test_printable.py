import os
import random
import re
import unicodedata

from retrieval_index.printable import printable

SEED = int(os.environ.get("ATTACK_SEED", "0"))


def test_what_harms_is_shown_by_number_and_ordinary_text_stays():
    for text in ("Zürich 🦊\n\tΑθήνα", "שלום", "e\u0301", "a\nb", ""):
        assert printable(text) == text
    assert printable("a\x1b[2Jb\x00\x7f\x9b") == r"a\x1b[2Jb\x00\x7f\x9b"
    assert printable("a\u202eb\u2066\u200f\ud800") == r"a\u202eb\u2066\u200f\ud800"
    assert printable("a\r\nb\rc") == "a\nb\\x0dc"


def test_nothing_that_harms_is_left_in_any_text():
    rng = random.Random(SEED)
    for _ in range(300):
        text = printable("".join(chr(rng.choice((rng.randrange(0x100), rng.randrange(0x110000)))) for _ in range(50)))
        text.encode()
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
        turns = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
        assert not any(unicodedata.bidirectional(character) in turns for character in text)
