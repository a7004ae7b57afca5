"""Federated methods, one file or folder each. `medfedvqa.core.registry` finds them here by themselves."""
