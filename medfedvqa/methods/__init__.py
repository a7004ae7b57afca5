"""Federated methods, one file or folder each. `medfedvqa.core.registry` finds a method in the file of its name."""
