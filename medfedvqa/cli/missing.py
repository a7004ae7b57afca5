"""Explains missing packages: a party that only verifies installs the project without those for training."""

TRAINING = frozenset(
    {
        *("torch", "torchvision", "open_clip", "opacus", "crypten", "nvflare", "monai", "pydicom", "PIL", "scipy"),
        *("matplotlib", "safetensors", "typst", "pyarrow", "pyrage"),
    }
)
"""The modules that the extra `train` brings."""
SENTENCE = (
    "this command needs packages that are not installed here, as torch: install them with "
    "`pip install 'medfedvqa[train]'`"
)


def is_missing_extra(error: BaseException) -> bool:
    """Whether the error is about a module that the extra `train` brings."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in TRAINING
