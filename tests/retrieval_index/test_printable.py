import re
import unicodedata

from retrieval_index.printable import printable


def test_what_harms_is_shown_by_number_and_ordinary_text_stays():
    for text in ("Zürich 🦊\n\tΑθήνα", "שלום", "e\u0301", "a\nb", ""):
        assert printable(text) == text
    assert printable("a\x1b[2Jb\x00\x7f\x9b") == r"a\x1b[2Jb\x00\x7f\x9b"
    assert printable("a\u202eb\u2066\u200f\ud800") == r"a\u202eb\u2066\u200f\ud800"
    assert printable("a\r\nb\rc") == "a\nb\\x0dc"


def test_nothing_that_harms_is_left_of_all_characters():
    turns = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    left = printable("".join(map(chr, range(0x110000))))
    assert {unicodedata.category(c) for c in left}.isdisjoint({"Cs"}) and {c for c in left if c < " "} == {"\t", "\n"}
    assert turns.isdisjoint(map(unicodedata.bidirectional, left)) and not re.search("[\x7f-\x9f]", left)
