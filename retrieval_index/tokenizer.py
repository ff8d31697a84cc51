"""The one tokenizer that every lexical index here uses, for passages and for queries alike."""

import re
import unicodedata
from collections.abc import Iterator

from retrieval_index.corpus import Corpus
from retrieval_index.progress import Track

# Lucene's classic English list, which bm25s takes for English too.
STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that
    the their then there these they this to was will with""".split()
)

_WORD = re.compile(r"\w+")


def tokenize(text: str) -> list[str]:
    """Lower-cased Unicode words (`\\w+`) in order, repeats kept, without English stop words.

    Text is put in Unicode form NFKC first, because "é" typed as a letter and an accent would otherwise split in two.
    No stemming and no accent folding: names are most of what multi-hop questions search for.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


def passage_text(title: str, text: str) -> str:
    """What is indexed of a passage: the title is searchable like any other words of it."""
    return f"{title} {text}"


def tokenize_corpus(corpus: Corpus, track: Track) -> Iterator[list[str]]:
    """The terms of each passage. Raises ValueError after the last where none had any, and for an empty corpus."""
    any_term = False
    for passage in track(corpus, "Reading words", len(corpus)):
        terms = tokenize(passage_text(passage.title, passage.text))
        any_term = any_term or bool(terms)
        yield terms
    if not any_term:
        raise ValueError(f"nothing to index: none of the {len(corpus)} passages holds a word that is not a stop word")
