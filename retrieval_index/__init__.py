"""Search over a corpus of passages.

    >>> import retrieval_index
    >>> toto = retrieval_index.Passage("1", "Toto", "Toto is a rock band from Los Angeles.")
    >>> searcher = retrieval_index.build([toto, retrieval_index.Passage("2", "Oz", "Toto is Dorothy's dog.")])
    >>> [passage.title for passage in searcher.search(["rock band"], k=1)[0]]
    ['Toto']

`searcher.save(folder)` writes an index that `load(folder)` verifies and opens. `python -m retrieval_index --help` lists
the same steps as shell commands. The package depends neither on the environments nor on the trainer.
"""

import retrieval_index.requirements  # noqa: F401  # isort: split
from retrieval_index.bm25 import BM25Index
from retrieval_index.build import build, build_folder, load
from retrieval_index.cache import CachedSearcher
from retrieval_index.client import RemoteSearcher, SearchFailed
from retrieval_index.corpus import Corpus, Passage
from retrieval_index.dense import DenseIndex
from retrieval_index.encoder import Encoder, SvdEncoder
from retrieval_index.hybrid import HybridIndex
from retrieval_index.readers import read_passages
from retrieval_index.reference import RankBM25Index
from retrieval_index.search import Index, Searcher
from retrieval_index.shards import ShardedSearcher
from retrieval_index.store import IndexCorrupt

__all__ = [
    "BM25Index",
    "CachedSearcher",
    "Corpus",
    "DenseIndex",
    "Encoder",
    "HybridIndex",
    "Index",
    "IndexCorrupt",
    "Passage",
    "RankBM25Index",
    "RemoteSearcher",
    "SearchFailed",
    "Searcher",
    "ShardedSearcher",
    "SvdEncoder",
    "build",
    "build_folder",
    "load",
    "read_passages",
]
