"""The papers' methods, a file or folder each. `medfedvqa.core.registry` finds a method in the file of its name."""

SHARED = {
    **dict.fromkeys(("crd", "dkd", "soft_targets", "sp"), "distillation"),
    **dict.fromkeys(("mevf", "pubmedclip", "san"), "medical"),
}
"""The file of each method that shares one with others."""
