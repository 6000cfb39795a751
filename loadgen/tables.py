"""Tables of a TOML file turned into dataclasses; a fault is named by its place in the file."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from math import isnan
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_TYPE_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


class ScenarioError(Exception):
    """Something a user wrote cannot be used; one sentence that names the place."""


def build(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """An instance of the dataclass `kind` from `table`, nested dataclasses included.

    `where` is the table's place in the file. Raises ScenarioError for unknown or missing keys,
    values of the wrong type, and values that the dataclass itself refuses with a ValueError.
    """
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise ScenarioError(f"{_at(where, key)} is not a key; known here: {', '.join(known)}")
    values = {}
    for name, field in known.items():
        if name in table:
            values[name] = convert(hints[name], table[name], _at(where, name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ScenarioError(f"{_at(where, name)} is missing")
    try:
        return kind(**values)
    except ValueError as error:
        raise ScenarioError(f"{where or 'the file'}: {error}") from None


def convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as the annotated type `hint`; raises ScenarioError where it is something else."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _one_of(get_args(hint), value, where)
    if origin is tuple:
        return _items(get_args(hint)[0], value, where)
    if origin is Literal:
        return _choice(get_args(hint), value, where)
    if origin is dict or hint is dict:
        return dict(_mapping(value, where))
    return _single(hint, value, where)


def _single(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(_choice(tuple(member.value for member in hint), value, where))
    if is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, hint):
            return value
        return build(hint, _mapping(value, where), where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, float) and isnan(value):
        raise ScenarioError(f"{where} must be a number, not nan")
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise ScenarioError(f"{where} must be {_TYPE_NAMES.get(hint, hint.__name__)}, not {value!r}")


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ScenarioError(f"{where} must be a table")
    return value


def _one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """The first of `kinds` that takes `value`; the last one's complaint when none does."""
    refused = ScenarioError(f"{where} has no usable type")
    for kind in kinds:
        if kind is NoneType:
            continue
        try:
            return convert(kind, value, where)
        except ScenarioError as error:
            refused = error
    raise refused


def _items(kind: Any, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ScenarioError(f"{where} must be a list")
    return tuple(convert(kind, item, f"{where}[{i}]") for i, item in enumerate(value))


def _choice(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in options:
        listed = ", ".join(str(option) for option in options)
        raise ScenarioError(f"{where} must be one of {listed}, not {value!r}")
    return value


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
