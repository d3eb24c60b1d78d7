"""What jsonargparse says of a command line or recipe that it refuses, in one line: where, what was got, what to write.

Its own message is a tree of all types that a value could have had, with a reason for each: twenty lines for one
misspelt word. The branch that came furthest is kept.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simzoo.core.registry import Known, find, known_classes, nearest, subclasses, unknown

__all__ = ["named", "named_bases", "refusal"]

_KEY = re.compile(r'Parser key "([^"]+)":\s*(.*)')
_CLASS = re.compile(r"Problem with given class_path '([^']+)':\s*(.*)")
_FLAT = re.compile(r"^unrecognized arguments")
_SAID = ("Does not validate against any", "Errors:", "Given value type:", "Given value:", "Subtypes:")
_OPEN = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_NOTHING = "Expected a <class 'NoneType'>"


class _Reason(NamedTuple):
    """One leaf of the tree.

    Attributes:
        depth: how far parsing came on this branch: the indentation.
        keys: from the option down to what is refused.
        owner: path of the innermost class whose arguments are read; empty: the command's own.
        types: what the value could have been, as the message has it.
        text: the reason.
        value: what was given; None: the message does not say.
    """

    depth: int
    keys: tuple[str, ...]
    owner: str
    types: str
    text: str
    value: str | None


def refusal(message: str, bases: Mapping[str, str], options: Sequence[str] = ()) -> str:
    """One line for a message of jsonargparse.

    Args:
        message: what the parser says.
        bases: for an option of the command, the base of the classes that it takes.
        options: the command's options, to name the nearest one of.
    """
    reasons = _reasons(message)
    if not reasons or not any(form.search(message) for form in (_KEY, _CLASS, _FLAT)):
        return " ".join(message.split())
    reason = max(reasons, key=lambda one: one.depth)
    said = _said(reason, bases, options)
    return f"--{'.'.join(reason.keys)}: {said}" if reason.keys else said


def _reasons(message: str) -> list[_Reason]:
    reasons = []
    lines = message.splitlines()
    stack: list[tuple[int, str, str]] = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        text, depth = line.strip().removeprefix("- "), len(line) - len(line.lstrip())
        while stack and stack[-1][0] >= depth:
            stack.pop()
        for kind, form in (("key", _KEY), ("class", _CLASS)):
            if match := form.fullmatch(text):
                stack.append((depth, kind, match[1]))
                text, depth = match[2], depth + 1
        if text.startswith("Subtypes:"):
            stack.append((depth - 1, "types", text.removeprefix("Subtypes:")))
        if text and text != _NOTHING and not text.startswith(_SAID):
            last = {kind: name for _, kind, name in stack}
            inner = next((at for at in range(len(stack), 0, -1) if stack[at - 1][1] == "types"), 0)
            types = last.get("types", "") if all(kind != "key" for _, kind, _ in stack[inner:]) else ""
            keys = tuple(name for _, kind, name in stack if kind == "key")
            reasons.append(_Reason(depth, keys, last.get("class", ""), types, text, _value(lines[number:])))
    return reasons


def _value(lines: Sequence[str]) -> str | None:
    """What was given, from the lines after a reason."""
    for line in lines:
        if match := re.search(r"Given value: (.*)|\. Got value: (.*)", line):
            value = match[1] or match[2] or ""
            nested = re.fullmatch(r"NestedArg\(key='.*?', val=(['\"])(.*)\1\)", value)
            return nested[2] if nested else value
    return None


def _said(reason: _Reason, bases: Mapping[str, str], options: Sequence[str]) -> str:
    text = reason.text
    if match := re.search(r"Expected a dot import path string: (.*)|Unexpected import path format: (.*)", text):
        return _no_class(match[1] or match[2], _base(reason, bases), reason.types)
    if match := re.search(r"Import path does not correspond to a subclass of (\w+)", text):
        return _no_class(reason.value or "", match[1])
    if match := re.search(r"Importing '([^']+)' is not allowed", text):
        return _not_allowed(match[1])
    if match := re.fullmatch(r"Option '([^']+)' is not accepted", text):
        return _no_option(match[1], reason.owner)
    if match := re.fullmatch(r"unrecognized arguments: (\S+)(.*)", text):
        near = nearest(match[1], options)
        return f"{text}" + (f"; did you mean {near}?" if near else "")
    if match := re.match(r"Expected an? (?:<class '([\w.]+)'>|(.*?))(?:\. Got value: .*)?$", text):
        kind = (match[1] or match[2]).rpartition(".")[2] if match[1] else match[2]
        return f"expected {kind}, got {reason.value!r}" if reason.value is not None else f"expected {kind}"
    return text


def _not_allowed(path: str) -> str:
    module = path.rpartition(".")[0]
    if path.split(".")[0] == "simzoo":
        return unknown(path, f"class in {module}", [known.name for known in _within(module)])
    said = f"{path!r} is no class of this project, and is not imported"
    if path.split(".")[0] in sys.stdlib_module_names:
        return said
    return f"{said}; if you trust its code, add --allow {module}"


def _within(module: str) -> list[Known]:
    return [known for same in known_classes().values() for known in same if f"{known.module}.".startswith(f"{module}.")]


def _base(reason: _Reason, bases: Mapping[str, str]) -> str:
    """The base of the classes that the refused value could have named; empty: not known."""
    if found := named(reason.types):
        return found
    if reason.owner:
        module, _, name = reason.owner.rpartition(".")
        owner = getattr(sys.modules.get(module), name, None)
        return named_bases(owner).get(reason.keys[-1], "") if owner else ""
    return bases.get(".".join(reason.keys), "") or bases.get(reason.keys[-1] if reason.keys else "", "")


def named_bases(function: Any) -> dict[str, str]:
    """For each parameter of a function or class that takes a class of this project: the base that its hint names."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint = parameter.annotation
        if base := named(hint if isinstance(hint, str) else getattr(hint, "__name__", None) or str(hint)):
            found[name] = base
    return found


def named(hint: str) -> str:
    """The first class of this project in the text of a type hint that has subclasses; empty: there is none."""
    for word in re.findall(r"[\w.]+", hint):
        name: str = word.rpartition(".")[2]
        if find(name) is not None and any(known.name != name for known in subclasses(name)):
            return name
    return ""


def _no_class(name: str, base: str, types: str = "") -> str:
    if base:
        return unknown(name, base, {known.name for known in subclasses(base)})
    for path in re.findall(r"[\w.]+", types):  # another project's class, such as Lightning's Callback
        module, _, own = path.rpartition(".")
        if isinstance(cls := getattr(sys.modules.get(module), own, None), type) and cls.__subclasses__():
            return unknown(name, own, {one.__name__ for one in _below(cls)})
    return f"there is no class {name!r}"


def _below(cls: type) -> Iterator[type]:
    below: list[type] = cls.__subclasses__()
    for one in below:
        yield one
        yield from _below(one)


def _options(cls: type) -> list[str]:
    """Parameters of a class, with those of its bases that ``**kwargs`` hands on."""
    found: list[str] = []
    one: type
    for one in inspect.getmro(cls):
        parameters = inspect.signature(getattr(one, "__init__")).parameters.values()  # noqa: B009  mypy's rule
        found += [each.name for each in parameters if each.kind not in _OPEN and each.name != "self"]
        if not any(each.kind == inspect.Parameter.VAR_KEYWORD for each in parameters):
            break
    return list(dict.fromkeys(found))


def _no_option(name: str, owner: str) -> str:
    module, _, own = owner.rpartition(".")
    cls = getattr(sys.modules.get(module), own, None)
    known = [] if cls is None else _options(cls)
    near = nearest(name, known)
    meant = f"; did you mean {near}?" if near else "."
    return f"{own} has no option {name!r}{meant} It has {', '.join(sorted(known))}"
