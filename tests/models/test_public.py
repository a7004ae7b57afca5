"""The package's public surface."""

import medfedvqa.models


def test_every_export_exists_once():
    names = medfedvqa.models.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(medfedvqa.models, name) for name in names)
