"""Terms of a text: the same for passages and queries, in every lexical index.

An index is searched with the terms that it was built of: the weights of the fields are in its manifest
(`Analyzer.parameters`), and whoever changes `tokenize` raises `store.FORMAT_VERSION`.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

TITLE_WEIGHT = 3

# Lucene's classic English list, which bm25s takes for English too.
STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that
    the their then there these they this to was will with""".split()
)

_WORD = re.compile(r"\w+")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_UNSEEN = re.compile("[\u00ad\u200c-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")  # \u200b is where a line may break
_THOUSANDS = re.compile(r",(?=\d{3}(?!\d))(?<=\d,)(?<!\d{4},)")
_BASE_LETTER = re.compile(r"LATIN (?:SMALL|CAPITAL) LETTER (?:DOTLESS )?([A-Z]{1,2})(?: WITH .+)?")
_OTHER_LETTERS = {"œ": "oe", "ð": "d", "þ": "th", "ŋ": "n", "ĸ": "q", "ʻ": "", "ʼ": "", "ʾ": "", "ʿ": ""}


def tokenize(text: str) -> list[str]:
    """Return the terms of a text in order, with repeats. No stemming: most multi-hop queries are names.

    Terms are Unicode words (`\\w+`) without English stop words, with case and accents folded as in `_fold`: "Łódź" is found as
    "lodz", and "1,000" is the word "1000". Invisible characters, such as soft hyphens, do not split a word.
    """
    return _drop_stop_words(_words(text))


def _drop_stop_words(words: list[str]) -> list[str]:
    return [word for word in words if word not in STOP_WORDS]


def _words(text: str) -> list[str]:
    if not text.isascii():  # a table is slow: only what is not ASCII goes through it
        text = _NOT_ASCII.sub(lambda part: part[0].translate(_FOLDED), _UNSEEN.sub("", text))
    text = text.lower()
    return _WORD.findall(_THOUSANDS.sub("", text) if "," in text else text)


def passage_text(title: str, text: str) -> str:
    """Return the text of a passage for an encoder."""
    return f"{title} {text}"


@dataclass(frozen=True, slots=True)
class Analyzer:
    """The terms of passages and queries in a lexical index.

    Attributes:
        title_weight: how often the title counts, as if it stood so often before the text; 0 leaves it out entirely.
        exact_title: the whole title is one more term, and so is the whole query: who asks for "Let It Be" is given what
            is called so, before what has much to say of it.
    """

    title_weight: int = TITLE_WEIGHT
    exact_title: bool = True

    def __post_init__(self):
        if isinstance(self.title_weight, bool) or not isinstance(self.title_weight, int) or self.title_weight < 0:
            raise ValueError(f"title_weight must be an integer of at least 0, got {self.title_weight!r}")

    @property
    def parameters(self) -> dict:
        """Its entries in the manifest."""
        return asdict(self)

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """Make the analyzer of a manifest, or of the options of a build."""
        return cls(**{field.name: parameters[field.name] for field in fields(cls) if field.name in parameters})

    def query_terms(self, query: str) -> list[str]:
        """The terms of a query."""
        words = _words(query)
        return _drop_stop_words(words) + self._whole(words)

    def passage_terms(self, title: str, text: str) -> list[str]:
        """The terms of a passage, those of the title as often as it counts."""
        words = _words(title)
        return _drop_stop_words(words) * self.title_weight + tokenize(text) + self._whole(words)

    def _whole(self, title: list[str]) -> list[str]:
        """The term of a whole title: its words, stop words too, in one. No word begins as it does."""
        return [f"={''.join(title)}"] if self.exact_title and self.title_weight and title else []


def _fold(character: str) -> str:
    """Fold to lower case without accents, as in Lucene's ASCIIFoldingFilter.

    Unicode form NFKD without combining marks. Latin letters that do not decompose become what is typed for them: "ø" o, "æ" ae,
    "ß" ss.
    """
    parts = unicodedata.normalize("NFKD", character)
    if "\u2044" in parts:  # "13½" is 13 and 1/2, not 131 and 2
        parts = f" {parts}"
    base = "".join(part for part in parts if not unicodedata.category(part).startswith("M")).casefold()
    return "".join(map(_fold_letter, base))


def _fold_letter(letter: str) -> str:
    if letter.isascii():
        return letter
    if letter in _OTHER_LETTERS:
        return _OTHER_LETTERS[letter]
    named = _BASE_LETTER.fullmatch(unicodedata.name(letter, ""))
    return named[1].lower() if named else letter


class _Folding(dict):
    """A table for `str.translate` that is filled as characters come."""

    def __missing__(self, code: int) -> str:
        self[code] = folded = _fold(chr(code))
        return folded


_FOLDED = _Folding()
