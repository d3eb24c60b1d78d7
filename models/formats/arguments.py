"""Arguments from the config.json of a checkpoint, which are data: the constructor's type hints say what each may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from inspect import Parameter, isabstract, signature
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from simzoo.core.registry import find

__all__ = ["MOVED", "build", "own_class"]

T = TypeVar("T")

ROOMS = ("losses", "models")
"""Where the classes are that a config may name."""

MOVED = {
    "losses": "simzoo.losses",
    "losses.mixture": "simzoo.losses.mixture",
    "losses.ranking": "simzoo.losses.ranking",
    "models.cmc": "simzoo.models.cmc",
    "models.cross_encoder": "simzoo.models.cross_encoder",
    "models.deformer": "simzoo.models.deformer",
    "models.dual_encoder": "simzoo.models.dual_encoder",
    "models.hypencoder": "simzoo.models.hypencoder",
    "models.late_interaction": "simzoo.models.late_interaction",
    "models.mix_encoder": "simzoo.models.mix_encoder",
    "models.mol": "simzoo.models.mixture_of_logits",
    "models.next_item": "simzoo.models.next_item",
    "models.next_item_mol": "simzoo.models.next_item_mol",
}
"""Modules that released checkpoints name, and where their classes are now. An entry stays for good."""


def own_class(name: object, base: type[T], where: str, called: str) -> type[T]:
    """The class of this project that a file names by its module's and its own name, or by those it had.

    The name is looked up in `simzoo.core.registry`; no module is searched for by it.

    Args:
        name: what the file says.
        base: what the class has to be; abstract classes are refused.
        where: file and key, for messages.
        called: what the class has to be, for messages.

    Raises:
        ValueError: there is no such class.
    """
    module, _, own_name = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    module = MOVED.get(module, module)
    known = find(f"{module}.{own_name}", ROOMS) if module else None
    if known is not None:
        found = getattr(import_module(known.module), own_name)
        if isinstance(found, type) and issubclass(found, base) and not isabstract(found):
            return found
    raise ValueError(f"{where} {name!r} is not a {called}, and is not loaded")


def build(cls: Callable[..., T], given: object, where: str, skip: Collection[str] = ()) -> T:
    """An object of a class of ours, made with arguments from a file.

    Plain values, literals, tuples, lists and dataclasses are taken as the type hints say. Where a hint is another
    class, the file names one of ours that is such a class: ``{"class_path": ..., "init_args": {...}}``.

    Args:
        cls: the class.
        given: arguments by name, as JSON has them.
        where: file and key, for messages.
        skip: parameters that a file does not set.

    Raises:
        ValueError: an argument is unknown, missing or of another type; says which, and where.
    """
    return cls(**_arguments(cls, given, where, skip))


def _arguments(cls: Callable[..., object], given: object, where: str, skip: Collection[str] = ()) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _refused(given, "an object", where)
    hints = get_type_hints(cls if is_dataclass(cls) else cls.__init__)
    known = {
        name: parameter
        for name, parameter in signature(cls).parameters.items()
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY) and name not in skip
    }
    if unknown := sorted(given.keys() - known.keys()):
        raise ValueError(f"{where}.{unknown[0]}: there is no such argument; expected some of {', '.join(known)}")
    needed = [name for name, parameter in known.items() if parameter.default is Parameter.empty]
    if missing := [name for name in needed if name not in given]:
        raise ValueError(f"{where}.{missing[0]} is missing")
    return {name: _value(hints[name], value, f"{where}.{name}") for name, value in given.items()}


def _part(cls: type[Any], given: object, where: str) -> Any:
    """`build` for an argument: what its constructor refuses is said with its place."""
    arguments = _arguments(cls, given, where)
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _value(hint: Any, given: object, where: str) -> Any:
    """A value of the type that a hint says, from JSON's value."""
    if hint in _PLAIN:
        return _plain(hint, given, where)
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _one_of(options, given, where)
    if origin is Literal:
        if not any(given == option and type(given) is type(option) for option in options):
            raise _refused(given, f"one of {', '.join(map(repr, options))}", where)
        return given
    if origin is list:
        return [_value(options[0], value, f"{where}[{i}]") for i, value in enumerate(_list(given, where))]
    if origin is tuple:
        return _tuple(options, _list(given, where), where)
    if is_dataclass(hint):
        return _part(hint, given, where)  # type: ignore[arg-type]
    if isinstance(hint, type) and hint is not Any:
        return _named(hint, given, where)
    raise ValueError(f"{where}: this argument is of type {hint}, which a file cannot give")


_PLAIN: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number of 64 bits",
    float: "a finite number",
    str: "a text",
    NoneType: "null",
}


def _plain(hint: Any, given: object, where: str) -> Any:
    if hint is float and type(given) in (int, float):
        try:
            number = float(given)  # type: ignore[arg-type]
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    elif type(given) is hint and not (isinstance(given, int) and not -(2**63) <= given < 2**63):
        return given
    raise _refused(given, _PLAIN[hint], where)


def _one_of(options: tuple[Any, ...], given: object, where: str) -> Any:
    """The first of several types that takes a value."""
    if given is None and NoneType in options:
        return None
    options = tuple(option for option in options if option is not NoneType)
    refused = []
    for option in options:
        try:
            return _value(option, given, where)
        except ValueError as error:
            refused.append(error)
    raise refused[0] if len(refused) == 1 else ValueError("; or ".join(map(str, refused)))


def _list(given: object, where: str) -> list[Any]:
    if not isinstance(given, list):
        raise _refused(given, "a list", where)
    return given


def _tuple(options: tuple[Any, ...], given: list[Any], where: str) -> tuple[Any, ...]:
    if options[-1] is Ellipsis:
        options = options[:1] * len(given)
    if len(options) != len(given):
        raise ValueError(f"{where}: got {len(given)} values, expected {len(options)}")
    return tuple(_value(options[i], value, f"{where}[{i}]") for i, value in enumerate(given))


def _named(base: type[Any], given: object, where: str) -> Any:
    if not isinstance(given, dict) or not {"class_path"} <= given.keys() <= {"class_path", "init_args"}:
        raise _refused(given, 'an object of "class_path" and "init_args"', where)
    cls = own_class(given["class_path"], base, f"{where}.class_path", f"{base.__name__} of this project")
    return _part(cls, given.get("init_args", {}), f"{where}.init_args")


def _refused(given: object, expected: str, where: str) -> ValueError:
    shown = repr(given)
    return ValueError(f"{where}: got {shown if len(shown) < 100 else shown[:100] + '...'}, expected {expected}")
