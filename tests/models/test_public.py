"""The package says what it offers."""

import medfedvqa.models


def test_every_exported_name_exists_and_the_list_is_sorted_and_without_doubles():
    names = medfedvqa.models.__all__
    assert all(hasattr(medfedvqa.models, name) for name in names)
    assert len(set(names)) == len(names)
    constants, rest = [n for n in names if n.isupper()], [n for n in names if not n.isupper()]
    assert names == sorted(constants) + sorted(n for n in rest if n[0].isupper()) + sorted(n for n in rest if n.islower())
