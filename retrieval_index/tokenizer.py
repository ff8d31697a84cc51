"""Terms of a text: the same for passages and queries, in every lexical index.

An index must be searched with the terms that it was built with. Therefore the weights of the fields are in its manifest
(`Analyzer.parameters`), and a change of `tokenize` must raise `store.FORMAT_VERSION`.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

TITLE_WEIGHT = 3

# Lucene's classic English list, which bm25s uses too.
STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that
    the their then there these they this to was will with""".split()
)

_WORD = re.compile(r"\w+")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_UNSEEN = re.compile("[\u00ad\u200c-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")  # not \u200b: a line may break there
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
    if not text.isascii():  # `translate` is slow: use it only for what is not ASCII
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
        title_weight: how many times the title counts, as if repeated before the text; 0 leaves it out entirely.
        exact_title: make the whole title one more term, and the whole query too. The query "Let It Be" then finds the
            passage of that title before passages about it.
    """

    title_weight: int = TITLE_WEIGHT
    exact_title: bool = True

    def __post_init__(self):
        if isinstance(self.title_weight, bool) or not isinstance(self.title_weight, int) or self.title_weight < 0:
            raise ValueError(f"title_weight must be an integer of at least 0, got {self.title_weight!r}")

    @property
    def parameters(self) -> dict:
        """Return the entries of the analyzer in the manifest."""
        return asdict(self)

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """Make an analyzer from the parameters in a manifest, or from the options of a build."""
        return cls(**{field.name: parameters[field.name] for field in fields(cls) if field.name in parameters})

    def query_terms(self, query: str) -> list[str]:
        """Return the terms of a query."""
        words = _words(query)
        return _drop_stop_words(words) + self._whole(words)

    def passage_terms(self, title: str, text: str) -> list[str]:
        """Return the terms of a passage, those of its title `title_weight` times."""
        words = _words(title)
        return _drop_stop_words(words) * self.title_weight + tokenize(text) + self._whole(words)

    def _whole(self, title: list[str]) -> list[str]:
        """Return the term of a whole title: "=" and all its words, also stop words, joined. No word begins with "="."""
        return [f"={''.join(title)}"] if self.exact_title and self.title_weight and title else []


def _fold(character: str) -> str:
    """Fold to lower case without accents, as in Lucene's ASCIIFoldingFilter.

    The result has Unicode form NFKD without combining marks. Latin letters that do not decompose become what is usually typed
    for them: "ø" becomes "o", "æ" "ae", "ß" "ss".
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
    """A table for `str.translate` that is filled when characters occur."""

    def __missing__(self, code: int) -> str:
        self[code] = folded = _fold(chr(code))
        return folded


_FOLDED = _Folding()
