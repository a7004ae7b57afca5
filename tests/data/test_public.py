"""The package's public surface."""

import medfedvqa.data


def test_every_export_exists_once_and_says_what_it_is() -> None:
    names = medfedvqa.data.__all__
    assert len(set(names)) == len(names)
    assert all(getattr(medfedvqa.data, name).__doc__ for name in names)
