"""The signature of a handler: from arguments to a payload, and back.

A Task reads it once. task.enqueue makes payloads with it, and task.run makes arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pulse import codecs
from pulse.job import Job

# A first parameter without an annotation is the job if it has one of these names.
JOB_NAMES = ("job", "_job", "_")
UNANNOTATED = (inspect.Parameter.empty, Any, object, "Any", "object")
JOB_ANNOTATIONS = (Job, "Job", "pulse.Job")


class Signature:
    def __init__(self, function: Callable[..., Any]) -> None:
        whole = inspect.signature(function)
        parameters = list(whole.parameters.values())
        self.takes_job = bool(parameters) and is_job(parameters[0])
        if self.takes_job:
            parameters = parameters[1:]
        self._whole = whole
        self._parameters = {p.name: p for p in parameters}
        # A function of the job alone reads any payload through it.
        self._spreads = bool(parameters) or not self.takes_job
        hints = codecs.hints_of(inspect.unwrap(function))
        self.decode_result = codecs.decoder_of(hints.get("return", Any))
        self._decoders = {
            name: decode
            for name, hint in hints.items()
            if name in self._parameters
            and (decode := codecs.decoder_of(hint)) is not None
        }
        # These have no name in a call, nor have the parameters before them.
        nameless = [
            n + 1
            for n, p in enumerate(parameters)
            if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)
        ]
        self._positional = parameters[: nameless[-1]] if nameless else []
        self.is_plain = not (self._decoders or self._positional or not self._spreads)
        """Whether the payload is what to call it with, where that is an object."""

    def payload(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The members that give the function these arguments."""
        first = (None,) if self.takes_job else ()
        try:
            bound = self._whole.bind(*first, *args, **kwargs)
        except TypeError as error:
            every = self._parameters.values()
            names = ", ".join(str(p.replace(annotation=p.empty)) for p in every)
            raise TypeError(f"{error}: it is enqueue(connection, {names})") from error
        payload: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            if name not in bound.arguments:
                continue
            value = bound.arguments[name]
            if parameter.kind is parameter.VAR_KEYWORD:
                payload.update(value)
            else:
                payload[name] = value
        return payload

    def arguments(self, kind: str, payload: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments to call the function with, after the job."""
        if not self._spreads:
            return [], {}
        if not isinstance(payload, dict):
            raise TypeError(
                f"the payload of {kind!r} is a {type(payload).__name__}; its "
                "handler has parameters, so it has to be an object"
            )
        named = dict(payload)
        try:
            for name, decode in self._decoders.items():
                if name in named:
                    named[name] = self._decode(name, decode, named[name])
        except codecs.FieldError as error:
            raise TypeError(f"the payload of {kind!r} does not fit: {error}") from error
        args: list[Any] = []
        for parameter in self._positional:
            value = named.pop(parameter.name, parameter.default)
            if value is parameter.empty:
                break
            args += value if parameter.kind is parameter.VAR_POSITIONAL else [value]
        return args, named

    def _decode(self, name: str, decode: codecs.Decode, value: Any) -> Any:
        """The annotation of *args is that of each of them."""
        if self._parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            return [
                codecs.within(f"{name}[{n}]", decode, item)
                for n, item in enumerate(value)
            ]
        return codecs.within(name, decode, value)


def is_job(parameter: inspect.Parameter) -> bool:
    if parameter.kind not in (
        parameter.POSITIONAL_ONLY,
        parameter.POSITIONAL_OR_KEYWORD,
    ):
        return False
    annotation = parameter.annotation
    named_job = annotation in UNANNOTATED and parameter.name in JOB_NAMES
    return annotation in JOB_ANNOTATIONS or named_job
