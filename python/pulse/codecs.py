"""How Python values become JSON, and how annotations make them values again.

    @pulse.task("bill")
    def bill(order: Order, at: datetime, total: Decimal) -> Receipt: ...

    bill.enqueue(conn, Order(7), datetime.now(timezone.utc), Decimal("9.50"))

Known: datetime, date, time, timedelta, UUID, Decimal, Enum, dataclasses, NamedTuples,
TypedDicts, models of Pydantic and msgspec, and lists, tuples, sets, dicts, unions and
NewTypes of all these.
Encoding goes by the type of the value, decoding by the annotation; register() teaches
another type. What has no annotation, or one that is not known, stays as JSON has it.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import functools
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
Decode = Callable[[Any], Any]

DEEPEST = 20
# NewType, and `type X = …`
ALIASES = ("__supertype__", "__value__")

_encoders: dict[type, Callable[[Any], Any]] = {}
_decoders: dict[Any, Decode] = {}


def register(
    kind: type[T], encode: Callable[[T], Any], decode: Callable[[Any], T]
) -> None:
    """Teach pulse a type of your own, for payloads and results.

    Args:
        kind: The type; subclasses are written as it is, too.
        encode: Returns JSON, or what pulse.codecs knows, for a value of the type.
        decode: Returns a value of the type for what encode returned.

    Example:
        >>> from pulse import codecs
        >>> codecs.register(complex, lambda z: [z.real, z.imag], lambda c: complex(*c))
        >>> @pulse.task("rotate")
        ... def rotate(z: complex) -> complex:
        ...     return z * 1j
        >>> job_id = rotate.enqueue(connection, 1 + 2j).id
    """
    _encoders[kind] = encode
    _decoders[kind] = decode
    decoder.cache_clear()
    _steps_of.cache_clear()


class FieldError(ValueError):
    """A value that does not fit, and where it stands: order.items[2].price."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path.lstrip('.')}: {self.problem}" if self.path else self.problem


# -- encoding -------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """For json: what it does not know, one level down."""
    for kind in type(value).__mro__:
        if kind in _encoders:
            return _encoders[kind](value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    model: Any = value
    if hasattr(model, "model_dump"):
        # A model's members, under the names by which it reads them.
        return model.model_dump(mode="json", by_alias=False, round_trip=True)
    if hasattr(model, "__struct_fields__"):
        import msgspec

        return msgspec.to_builtins(value)
    if _is_text(type(value)):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _is_text(kind: Any) -> bool:
    """UUID and Decimal, without importing either."""
    name = (getattr(kind, "__module__", ""), getattr(kind, "__name__", ""))
    return name in (("uuid", "UUID"), ("decimal", "Decimal"))


def path_of_unserializable(value: Any, path: str = "", depth: int = 0) -> str | None:
    """The path to the first value that JSON cannot hold; None below the depth limit."""
    if depth > DEEPEST:
        return None
    for step, member in _members(value):
        if not is_serializable(member):
            return path_of_unserializable(member, f"{path}{step}", depth + 1)
    return path.lstrip(".")


def is_serializable(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False, default=plain)
        return True
    except (TypeError, ValueError, RecursionError):
        return False


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f".{key}", member) for key, member in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{n}]", member) for n, member in enumerate(value))
    elif not isinstance(value, (str, int, float)):
        try:
            inner = plain(value)
        except Exception:
            return
        yield from _members(inner)


# -- decoding -------------------------------------------------------------------------


def decoder_of(annotation: Any) -> Decode | None:
    """The same for an annotation that may be anything."""
    try:
        return decoder(annotation)
    except Exception:
        return None


@functools.lru_cache(maxsize=1000)
def decoder(annotation: Any) -> Decode | None:
    """Return what turns JSON into a value of this type; None if JSON is the value."""
    if annotation in _decoders:
        return _decoders[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return decoder(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if origin is not None:
        return _container(origin, arguments)
    for named in ALIASES:
        if hasattr(annotation, named):
            return decoder(getattr(annotation, named))
    if not isinstance(annotation, type):
        return None
    if annotation in (tuple, set, frozenset):
        return _each(annotation, None)
    if issubclass(annotation, datetime.datetime):
        return lambda value: annotation.fromisoformat(
            _text(value).replace("Z", "+00:00")
        )
    if issubclass(annotation, (datetime.date, datetime.time)):
        return lambda value: annotation.fromisoformat(_text(value))
    if issubclass(annotation, datetime.timedelta):
        return lambda value: annotation(seconds=value)
    if issubclass(annotation, enum.Enum):
        return annotation
    if _is_text(annotation):
        make: Any = annotation
        return lambda value: make(_text(value))
    if typing.is_typeddict(annotation):
        return _typed_dict(annotation)
    if hasattr(annotation, "model_validate"):
        return _model(annotation.model_validate)
    if hasattr(annotation, "__struct_fields__"):
        import msgspec

        return lambda value: msgspec.convert(value, annotation)
    if dataclasses.is_dataclass(annotation):
        names = [f.name for f in dataclasses.fields(annotation) if f.init]
        return _record(annotation, names)
    if issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        return _sequence_record(annotation)
    return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"it is text in JSON, and not a {type(value).__name__}")
    return value


def within(step: str, decode: Decode | None, value: Any) -> Any:
    """Decode a member; an error says where it stands."""
    if decode is None:
        return value
    try:
        return decode(value)
    except FieldError as error:
        raise FieldError(f"{step}{error.path}", error.problem) from error
    except Exception as error:
        problem = str(error) or type(error).__name__
        raise FieldError(step, problem) from error


def _union(members: tuple[Any, ...]) -> Decode | None:
    """The first member that takes the value; one without a decoder takes its own."""
    each = [(member, decoder(member)) for member in members]
    if all(decode is None for _, decode in each):
        return None

    def decode_any(value: Any) -> Any:
        problems = []
        for member, decode in each:
            if decode is None:
                kind = typing.get_origin(member) or member
                if kind is Any or (isinstance(kind, type) and isinstance(value, kind)):
                    return value
                continue
            try:
                return decode(value)
            except Exception as error:
                problems.append(str(error))
        raise ValueError("; ".join(problems) or f"it is a {type(value).__name__}")

    return decode_any


def _container(origin: Any, arguments: tuple[Any, ...]) -> Decode | None:
    if not isinstance(origin, type):
        return None
    if issubclass(origin, tuple) and arguments[-1:] != (...,):
        steps = [decoder(argument) for argument in arguments]
        return lambda value: tuple(
            within(f"[{n}]", steps[n], item) for n, item in enumerate(value)
        )
    if issubclass(origin, collections.abc.Mapping):
        of_key = _key(arguments[0])
        inner = decoder(arguments[1])
        if of_key is None and inner is None:
            return None
        return lambda value: {
            within(f".{key}", of_key, key): within(f".{key}", inner, item)
            for key, item in value.items()
        }
    if issubclass(origin, collections.abc.Iterable):
        known = {tuple: tuple, set: set, frozenset: frozenset}
        return _each(known.get(origin), decoder(arguments[0]))
    # A generic class is decoded without its parameters.
    return decoder(typing.cast(Any, origin))


def _key(annotation: Any) -> Decode | None:
    """JSON has text as keys, and numbers as their digits; so have enums of numbers."""
    for named in ALIASES:
        if hasattr(annotation, named):
            return _key(getattr(annotation, named))
    if isinstance(annotation, type) and annotation is not bool:
        make: Any = annotation
        for number in (int, float):
            if issubclass(annotation, number):
                return lambda text: make(number(text))
    return decoder(annotation)


def _each(kind: Any, inner: Decode | None) -> Decode | None:
    if inner is None:
        return typing.cast("Decode | None", kind)
    made = kind or list
    return lambda value: made(
        within(f"[{n}]", inner, item) for n, item in enumerate(value)
    )


def _model(validate: Callable[..., Any]) -> Decode:
    """Pydantic says itself where it stands; its first problem is enough."""
    # From 2.11 on a field is also known by its own name where it has an alias.
    named = "by_name" in inspect.signature(validate).parameters
    both: dict[str, Any] = {"by_name": True, "by_alias": True} if named else {}

    def decode_model(value: Any) -> Any:
        try:
            return validate(value, **both)
        except ValueError as error:
            found = getattr(error, "errors", None)
            if found is None:
                raise
            first = found()[0]
            steps = (f"[{s}]" if isinstance(s, int) else f".{s}" for s in first["loc"])
            raise FieldError("".join(steps), first["msg"]) from error

    return decode_model


def _record(kind: Any, names: list[str]) -> Decode:
    def decode_record(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError(
                f"it is an object in JSON, and not a {type(value).__name__}"
            )
        steps = _steps_of(kind)
        return kind(
            **{
                name: within(f".{name}", steps.get(name), item)
                for name, item in value.items()
                if name in names
            }
        )

    return decode_record


def _typed_dict(kind: Any) -> Decode:
    def decode_dict(value: Any) -> Any:
        steps = _steps_of(kind)
        return {
            name: within(f".{name}", steps.get(name), item)
            for name, item in value.items()
        }

    return decode_dict


def _sequence_record(kind: Any) -> Decode:
    def decode_sequence(value: Any) -> Any:
        steps = _steps_of(kind)
        return kind(
            *(
                within(f".{name}", steps.get(name), item)
                for name, item in zip(kind._fields, value, strict=False)
            )
        )

    return decode_sequence


@functools.lru_cache(maxsize=1000)
def _steps_of(kind: Any) -> dict[str, Decode | None]:
    """The decoders of its members; when first used, as a class may name itself."""
    return {name: decoder_of(hint) for name, hint in hints_of(kind, vars(kind)).items()}


def hints_of(owner: Any, local: Any = None) -> dict[str, Any]:
    """Annotations as types. A name that only type checkers import is Any."""
    try:
        return typing.get_type_hints(owner, localns=local)
    except Exception:
        pass
    spaces = vars(sys.modules[owner.__module__])
    found: dict[str, Any] = {}
    for name, hint in getattr(owner, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: hint})
        try:
            found |= typing.get_type_hints(alone, spaces, local)
        except Exception:
            found[name] = Any
    return found
