"""Token counts of texts, for the budgets of episodes and passages."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from retrieval_index import hub
from retrieval_index.printable import encodable


@dataclass(frozen=True)
class TokenCounter:
    """Counts tokens with a tokenizer given by folder, ``tokenizer.json`` or hub id."""

    name: str

    def __post_init__(self):
        _load_tokenizer(self.name)

    def __call__(self, text: str) -> int:
        return len(self._encode(text).ids)

    def prefix(self, text: str, count: int) -> int:
        """Return the number of characters of the first ``count`` tokens of a text."""
        return max((end for _, end in self._encode(text).offsets[:count]), default=0)

    def _encode(self, text: str) -> Any:
        return _load_tokenizer(self.name).encode(encodable(text), add_special_tokens=False)


@lru_cache(maxsize=4)
def _load_tokenizer(name: str) -> Any:
    """Load a tokenizer, once per process: the environments of a vector share it."""
    import tokenizers

    path = Path(name).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        if path.is_file():
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
        else:
            if hub.is_hub_id(name):
                hub.check_model(name, "tokenizer.json")
            tokenizer = tokenizers.Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises plain Exception
        message = f"tokenizer must be a folder with tokenizer.json or a hub id, got {name!r}: {error}"
        raise ValueError(message) from error
    tokenizer.no_truncation()  # the file may store both
    tokenizer.no_padding()
    return tokenizer
