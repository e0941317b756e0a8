"""Prints every public name with its signature: python tests/support/public_api.py > tests/public_api.txt

Annotations are left out: how they are written differs between versions of Python, and mypy checks them.
"""

import inspect
from collections.abc import Iterator
from types import ModuleType

import looktwice

HERE = "looktwice"


def lines() -> Iterator[str]:
    """One line for each public name, method and attribute, in alphabetical order."""
    yield from described(looktwice, "looktwice")


def described(home: ModuleType, path: str) -> Iterator[str]:
    for name in sorted(public(home)):
        value = getattr(home, name)
        if isinstance(value, ModuleType):
            yield from described(value, f"{path}.{name}")
        elif inspect.isclass(value):
            yield f"{path}.{name}{signature(value)}"
            yield from members(value, f"{path}.{name}")
        else:
            yield f"{path}.{name}{signature(value)}"


def public(home: ModuleType) -> list[str]:
    """What a module declares, or else the functions and classes that it defines."""
    defined = [name for name, value in vars(home).items() if getattr(value, "__module__", None) == home.__name__]
    return getattr(home, "__all__", [name for name in defined if not name.startswith("_")])


def members(kind: type, path: str) -> Iterator[str]:
    """Its public attributes, but for those that other libraries put there."""
    for name in sorted(name for name in dir(kind) if not name.startswith("_")):
        home = next(parent for parent in kind.__mro__ if name in vars(parent))
        value = getattr(kind, name)
        foreign = inspect.isfunction(value) and not value.__module__.startswith(HERE)
        if home.__module__.startswith(HERE) and not foreign:
            yield f"{path}.{name}{signature(value)}"


def signature(value: object) -> str:
    """Parameters with their defaults, such as (image, *, seed=0); nothing for a value."""
    if not (inspect.isclass(value) or inspect.isfunction(value) or inspect.ismethod(value)):
        return ""
    try:
        whole = inspect.signature(value)
    except ValueError:
        return "(…)"  # an exception that takes what Exception takes
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in whole.parameters.values()]
    return str(whole.replace(parameters=plain, return_annotation=inspect.Signature.empty))


if __name__ == "__main__":
    print("\n".join(lines()))
