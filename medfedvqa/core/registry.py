"""The methods by name, and the creation of a configured method from a name and options."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from medfedvqa import plugins
from medfedvqa.checking import checked
from medfedvqa.code_identity import remember
from medfedvqa.core.method import Method
from medfedvqa.core.scores import FINISH
from medfedvqa.errors import ConfigError
from privacy import DPSettings, Gathering, Secagg

AnyMethod = TypeVar("AnyMethod", bound="type[Method[Any]]")

_METHODS: dict[str, type[Method[Any]]] = {}
PACKAGES = ("medfedvqa.methods", "medfedvqa.papers.methods")
"""The packages of the built-in methods. The import of a module registers the method of the same name."""


def register(method: AnyMethod) -> AnyMethod:
    """Registers a method under its `name`, and remembers its code as it is loaded.

    Raises `ConfigError` for a method from outside with the name of a built-in one.
    """
    if is_built_in(method.name) and not method.__module__.startswith(tuple(f"{package}." for package in PACKAGES)):
        raise ConfigError(f"the project has a method '{method.name}' already: give yours another name")
    remember(method)
    _METHODS[method.name] = method
    return method


@cache
def _homes() -> dict[str, str]:
    """The module of each of the project's own methods. No module is imported."""
    homes: dict[str, str] = {}
    for package in map(import_module, PACKAGES):
        shared: dict[str, str] = getattr(package, "SHARED", {})
        files = {module.name for module in iter_modules(package.__path__)} - {*shared.values()}
        homes |= {name: f"{package.__name__}.{file}" for name, file in ({f: f for f in files} | shared).items()}
    return homes


def is_built_in(name: str) -> bool:
    """Whether the method of this name is part of the project."""
    return name in _homes()


def method_names(*, training: bool = True) -> tuple[str, ...]:
    """Names of the listed methods that train, sorted. `training=False` adds those that only count."""
    for module in _homes().values():
        import_module(module)
    listed = ((name, method) for name, method in _METHODS.items() if method.listed)
    return tuple(sorted(name for name, method in listed if method.trains or not training))


def method_type(name: str) -> type[Method[Any]]:
    """The registered method, or else the method of an allowed distribution: see `medfedvqa.plugins`.

    Raises `ConfigError` for an unknown method; its subclass `PlugInRefused` if the distribution is not allowed.
    """
    if is_built_in(name):
        import_module(_homes()[name])
    if name not in _METHODS and (outside := plugins.load("methods", name)) is not None:
        if not (isinstance(outside, type) and issubclass(outside, Method) and getattr(outside, "name", "") == name):
            raise ConfigError(f"the entry point '{name}' of a distribution leads to no method of this name")
        register(outside)
    if name not in _METHODS:
        raise ConfigError(f"unknown method; the methods are: {', '.join(method_names(training=False))}")
    return _METHODS[name]


def create(
    name: str,
    options: Mapping[str, Any],
    dp: DPSettings | None = None,
    secagg: Secagg = False,
    gathering: Gathering | None = None,
) -> Method[Any]:
    """A configured method. Raises `ConfigError` for an unknown method or option, or a value out of range."""
    kind = method_type(name)
    if FINISH in options and FINISH not in kind.config_type.model_fields:
        raise ConfigError(f"method '{name}' keeps no model of its own at a site: leave out '{FINISH}'")
    if "schedule" in options and "schedule" not in kind.config_type.model_fields:
        raise ConfigError(
            f"the sites of '{name}' train no values in common, along whose mean gradient a server steps: leave out "
            "'schedule', or use 'fedavg', for prompts with 'tuning' as 'prompt'"
        )
    method = kind(checked(kind.config_type, options, f"method '{name}'"), dp, secagg)
    method.gathering = gathering or Gathering()
    if method.gathering.most_norm is not None and dp is not None and dp.is_shared:
        raise ConfigError(
            "sums with shared noise must be exact, and 'most_norm' would shorten what is sent: leave it out"
        )
    if method.gathering.robust and secagg:
        raise ConfigError(
            f"'gather' is '{method.gathering.rule}', which needs every site's own upload at the server: on shares only "
            "a mean can be taken"
        )
    if method.gathering.robust and not method.averages:
        raise ConfigError(f"the method '{name}' averages no uploads with these options: leave out 'gather'")
    return method
