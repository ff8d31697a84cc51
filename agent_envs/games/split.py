"""The split of an instance: a function of the instance alone, so that no seed can move one to the other split."""

from hashlib import blake2b

SPLITS = ("train", "validation")


def digest(text: str) -> str:
    """A short name for an instance, the same in every process."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


def split_of(key: str) -> str:
    """``"train"`` or ``"validation"``, by the parity of the digest of ``key``: about half of all instances each."""
    return SPLITS[int(digest(key), 16) % 2]


def check_split(split: str) -> None:
    """Check the name of a split.

    Raises:
        ValueError: ``split`` is neither ``"train"`` nor ``"validation"``.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
