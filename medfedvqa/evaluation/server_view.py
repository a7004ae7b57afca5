"""The last prompts at the server, saved for plots and for attacks on them."""

import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from audits import Tensors
from medfedvqa.atomic_files import write_whole
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.history import History

TRANSCRIPT = "transcript.npz"


@dataclass(frozen=True)
class Transcript:
    """The last local and shared prompts, by site and tensor name."""

    uploads: dict[str, Tensors] = field(default_factory=dict)
    shared: dict[str, Tensors] = field(default_factory=dict)


def save_transcript(out: Path, history: History) -> Path:
    """Writes `transcript.npz` in the folder `out`: plain arrays, each named `uploads|shared/site/tensor`."""
    arrays = {
        f"{kind}/{site}/{name}": array
        for kind, by_site in (("uploads", history.uploads), ("shared", history.shared))
        for site, tensors in by_site.items()
        for name, array in tensors.items()
    }
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]  # its only keyword argument has no slash in its name
    return write_whole(out / TRANSCRIPT, content.getvalue())


def load_transcript(out: Path) -> Transcript:
    """Reads the `transcript.npz` of a run's folder. Raises `ConfigError` if it is missing or damaged."""
    transcript = Transcript()
    by_kind = {"uploads": transcript.uploads, "shared": transcript.shared}
    try:
        with (out / TRANSCRIPT).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for key in arrays.files:
                kind, site, name = key.split("/", 2)
                by_kind[kind].setdefault(site, {})[name] = arrays[key]
    except FileNotFoundError:
        raise ConfigError(f"the folder holds no {TRANSCRIPT}: give the output folder of a run") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise ConfigError(f"{TRANSCRIPT} is damaged: repeat the run that wrote it") from None
    return transcript
