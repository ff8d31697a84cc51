"""Check within seconds whether the Hugging Face hub answers and has a model; its own library tries each file for 24 s."""

import os
import re
from pathlib import Path
from typing import Any

PROBE_SECONDS = 5.0  # for the hub to answer
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_WHAT = "give a folder, a GGUF file or a hub id"


def is_hub_id(name: str | Path) -> bool:
    """Whether a name can be a repository on the hub, and is not a file or folder here."""
    return bool(_HUB_ID.fullmatch(str(name))) and not Path(name).exists()


def ask_hub(name: str, kind: str) -> Any:
    """Ask the hub for its data on a "model" or "dataset" (``kind``). Raises its library's errors, within `PROBE_SECONDS`."""
    from huggingface_hub import HfApi, constants

    # With telemetry on, the library sends another request to the hub first, and waits 3 s for the answer.
    telemetry_off, constants.HF_HUB_DISABLE_TELEMETRY = constants.HF_HUB_DISABLE_TELEMETRY, True
    try:
        return HfApi().repo_info(name, repo_type=kind, timeout=PROBE_SECONDS)
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = telemetry_off


def check_model(name: str, *files: str) -> None:
    """Check that the hub has a model, or the cache one of its ``files`` (default: its configuration). If the hub cannot be
    reached and the cache has the model, this process stays offline from then on. Raises a ValueError in one line."""
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    files = files or ("config.json", "adapter_config.json")
    cached = any(isinstance(try_to_load_from_cache(name, file), str) for file in files)
    if constants.HF_HUB_OFFLINE:
        if not cached:
            here = f"here nor in the cache {constants.HF_HUB_CACHE}"
            advice = f"HF_HUB_OFFLINE forbids to ask the hub: unset it, or {_WHAT} that is here"
            raise ValueError(f"there is no model {name!r} {here}, and {advice}")
        return
    try:
        ask_hub(name, "model")
    except GatedRepoError as error:
        advice = f"accept its terms at {constants.ENDPOINT}/{name}, and set HF_TOKEN"
        raise ValueError(f"{name} is a gated model: {advice}") from error
    except RepositoryNotFoundError as error:
        advice = f"{_WHAT}; for a private one, set HF_TOKEN"
        raise ValueError(f"there is no model {name!r}, neither a folder here nor on the hub: {advice}") from error
    except Exception as error:  # any error of the HTTP library if the hub does not answer
        if not cached:
            reason = f"{type(error).__name__}: {str(error) or 'no answer'}"
            raise ValueError(
                f"there is no folder {name!r} here, and {constants.ENDPOINT} cannot be asked for it ({reason}): where there is "
                f"a network, hf download {name} --local-dir FOLDER gets it, then give that folder"
            ) from error
        os.environ["HF_HUB_OFFLINE"] = "1"
        constants.HF_HUB_OFFLINE = True
