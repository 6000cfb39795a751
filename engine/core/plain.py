"""Dataclasses to JSON data and back, by their annotations: how commands and settings are kept.

Nothing here knows a class by name, so that a field added to a command or a policy is kept as soon
as it exists.
"""

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


class PlainError(ValueError):
    """Data that does not have the form its type asks for; the message names the place."""


def to_plain(value: Any) -> Any:
    """`value` as JSON data: dataclasses become objects, tuples lists, bytes hexadecimal text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return value.hex() if isinstance(value, bytes) else value


def from_plain(hint: Any, data: Any, where: str) -> Any:
    """The value of annotated type `hint` that `to_plain` made `data` of. Raises PlainError."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _one_of(get_args(hint), data, where)
    if origin is tuple:
        return _tuple(get_args(hint), data, where)
    if isinstance(hint, type) and is_dataclass(hint):
        return _dataclass(hint, data, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _checked(hint, data, where)
    if hint is bytes and isinstance(data, str):
        return _checked(bytes.fromhex, data, where)
    return _scalar(hint, data, where)


def _scalar(hint: Any, data: Any, where: str) -> Any:
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if hint in (int, float, str, bool, NoneType) and type(data) is hint:
        return data
    raise PlainError(f"{where} is {data!r}, which is not of type {getattr(hint, '__name__', hint)}")


def fields_from_plain(
    kind: type, data: Any, where: str, elsewhere: Collection[str] = ()
) -> dict[str, Any]:
    """Values for the fields of the dataclass `kind` that `data` has, those `elsewhere` apart.

    Raises PlainError for a field that `kind` does not know, lacks, or that has another type.
    """
    if not isinstance(data, dict):
        raise PlainError(f"{where} is not an object")
    hints, required = _form(kind)
    for name in data:
        if name not in hints or name in elsewhere:
            raise PlainError(f"{where} has a field {name!r} that is not known here")
    for name in required:
        if name not in data and name not in elsewhere:
            raise PlainError(f"{where} lacks the field {name!r}")
    return {name: from_plain(hints[name], item, f"{where}.{name}") for name, item in data.items()}


@cache
def _form(kind: type) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Annotations by field, and the fields without a default."""
    hints = get_type_hints(kind)
    declared = fields(kind)
    required = (
        field.name
        for field in declared
        if field.default is MISSING and field.default_factory is MISSING
    )
    return {field.name: hints[field.name] for field in declared}, tuple(required)


def _dataclass(kind: type, data: Any, where: str) -> Any:
    values = fields_from_plain(kind, data, where)
    return _checked(lambda given: kind(**given), values, where)


def _one_of(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    """The first of `kinds` that takes `data`; the last one's complaint when none does."""
    refused = PlainError(f"{where} has no type")
    for kind in kinds:
        try:
            return from_plain(kind, data, where)
        except PlainError as error:
            refused = error
    raise refused


def _tuple(kinds: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise PlainError(f"{where} is not a list")
    if len(kinds) == 2 and kinds[1] is ...:
        kinds = (kinds[0],) * len(data)
    if len(kinds) != len(data):
        raise PlainError(f"{where} has {len(data)} items, not {len(kinds)}")
    return tuple(
        from_plain(kind, item, f"{where}[{index}]")
        for index, (kind, item) in enumerate(zip(kinds, data, strict=True))
    )


def _checked(make: Any, data: Any, where: str) -> Any:
    try:
        return make(data)
    except ValueError as error:
        raise PlainError(f"{where}: {error}") from None
