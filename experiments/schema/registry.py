"""What a user registers of their own: routers, policies, acceptance processes and step prices by name.

Behind each kind is the dict of name to class that the shipped ones are in. What is kept here besides is where
a class came from, so that a name taken twice is refused, and results can say whose code made them.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from specfleet.experiments.schema.faults import UserError
from specfleet.hardware.costmodels import COST_MODELS
from specfleet.sim.router import ROUTERS
from specfleet.sim.speculation.own import PROCESSES
from specfleet.sim.speculation.policies import POLICIES

Maker = Callable[..., object]


@dataclass(frozen=True)
class Kind:
    """One kind of thing that can be registered.

    Attributes:
        word: what a message calls it.
        known: name -> class, shipped and registered.
        given: arguments that the product gives to the constructor.
        by_name: whether it gives them by name, beside the user's own parameters.
        on_request: further ones that it gives where the constructor names them.
        methods: method -> its arguments.
    """

    word: str
    known: dict[str, Maker]
    given: tuple[str, ...]
    by_name: bool
    on_request: tuple[str, ...]
    methods: Mapping[str, tuple[str, ...]]


KINDS = {
    "router": Kind(
        "router", cast("Any", ROUTERS), ("seed",), False, (), {"pick": ("request_id", "replicas")}
    ),
    "policy": Kind(
        "policy",
        cast("Any", POLICIES),
        ("k",),
        True,
        ("cost",),
        {"plan": ("batch", "waiting", "now"), "observe": ("batch", "sampled", "seconds")},
    ),
    "acceptance": Kind(
        "acceptance process",
        cast("Any", PROCESSES),
        ("k", "seed"),
        True,
        (),
        {"accepted": ("request_id", "rounds", "prompt_tokens", "temperature")},
    ),
    "cost_model": Kind(
        "cost model",
        cast("Any", COST_MODELS),
        ("placement",),
        False,
        (),
        {"seconds": ("shape",), "terms": ("columns",), "summary": ()},
    ),
}


@dataclass(frozen=True)
class Registered:
    """A class of the user's own.

    Attributes:
        kind: a key of `KINDS`.
        name: as a file says it.
        cls: the class.
        origin: the plugin that registered it, or the module that defines it.
    """

    kind: str
    name: str
    cls: type
    origin: str

    def __str__(self) -> str:
        return f"{KINDS[self.kind].word} {self.name}, {signature(self.cls)} of {Path(self.origin).name}"

    def described(self) -> dict[str, object]:
        """Returns class, constructor, and the file with the hash of its content; null where there is none."""
        try:
            file: str | None = inspect.getsourcefile(self.cls)
        except (TypeError, OSError):
            file = None
        content = Path(file).read_bytes() if file and Path(file).is_file() else None
        return {
            "kind": self.kind,
            "name": self.name,
            "class": signature(self.cls),
            "file": file,
            "sha256": None if content is None else hashlib.sha256(content).hexdigest(),
        }

    @property
    def reachable(self) -> bool:
        """Whether another process can import it: not where it was typed in, nor what a function made."""
        script = getattr(sys.modules["__main__"], "__file__", None) or ""
        typed_in = self.cls.__module__ == "__main__" and not Path(script).is_file()
        return not typed_in and "<locals>" not in self.cls.__qualname__


@dataclass(frozen=True)
class Address:
    """Where another process finds a class that was registered here."""

    kind: str
    name: str
    module: str
    qualname: str

    def register(self) -> None:
        """Registers it, unless importing its module has done so."""
        module = importlib.import_module(self.module)
        if (self.kind, self.name) not in OWN:
            register(self.kind, self.name, attrgetter(self.qualname)(module))


def from_python() -> list[Address]:
    """Returns what was registered by no plugin, as far as another process can import it."""
    return [
        Address(mine.kind, mine.name, mine.cls.__module__, mine.cls.__qualname__)
        for mine in OWN.values()
        if mine.origin == mine.cls.__module__ and mine.reachable
    ]


OWN: dict[tuple[str, str], Registered] = {}
"""(kind, name) -> what the user registered."""

_plugins: list[str] = []
"""Plugins that are being loaded, the innermost last."""


@contextmanager
def loading(plugin: str) -> Iterator[None]:
    """What is registered meanwhile is what this plugin registers; if it fails, all is as it was before."""
    before = dict(OWN)
    _plugins.append(plugin)
    try:
        for mine in before.values():
            if mine.origin == plugin:
                forget(mine.kind, mine.name)
        yield
    except BaseException:
        for kind, name in list(OWN):
            forget(kind, name)
        for mine in before.values():
            _put(mine)
        raise
    finally:
        _plugins.pop()


def register(kind: str, name: str, cls: type) -> None:
    """Makes a class known under a name.

    A plugin loaded again, or a class defined again at the same place, takes the place of what it was.

    Raises:
        UserError: the name is taken or no name, or the class is not what the product calls.
    """
    what, found = KINDS[kind], f"{KINDS[kind].word} {name}"
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise UserError(f"{found}: is no name; use letters, digits, dashes and underscores")
    mine = Registered(kind, name, cls, _plugins[-1] if _plugins else cls.__module__)
    there = OWN.get((kind, name))
    if there is None and name in what.known:
        raise UserError(f"{found}: is shipped already; choose another name")
    again = there is not None and (there.cls.__module__, there.cls.__qualname__) == (
        cls.__module__,
        cls.__qualname__,
    )
    if there is not None and not again and there.origin != mine.origin:
        raise UserError(f"{found}: is registered already, as {there}; choose another name")
    if faults := [*_constructor_faults(what, cls), *_method_faults(what, cls)]:
        raise UserError(f"{found}: {'; '.join(faults)}")
    _put(mine)


def _put(mine: Registered) -> None:
    KINDS[mine.kind].known[mine.name] = mine.cls
    OWN[mine.kind, mine.name] = mine


def forget(kind: str, name: str) -> None:
    """Undoes a registration."""
    del OWN[kind, name], KINDS[kind].known[name]


def signature(cls: Any) -> str:
    """A class with its constructor, as one would call it."""
    try:
        asked = inspect.signature(cls, eval_str=True)
    except (NameError, TypeError, SyntaxError):
        asked = inspect.signature(cls)
    return f"{cls.__name__}{asked.replace(return_annotation=inspect.Signature.empty)}"


def parameters(kind: str, name: str) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a class that are the user's to give, by name."""
    what = KINDS[kind]
    found = inspect.signature(what.known[name]).parameters
    if not what.by_name:
        return {}
    ours = {*what.given, *what.on_request}
    return {key: p for key, p in found.items() if key not in ours and p.kind not in _REST}


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_PLAIN = (bool, int, float, str)


def with_defaults(kind: str, name: str, given: Mapping[str, object]) -> dict[str, object]:
    """Returns parameters with the constructor's own defaults beside them, where a file can hold those."""
    found = dict(given)
    for key, parameter in parameters(kind, name).items():
        value = tuple(parameter.default) if isinstance(parameter.default, list) else parameter.default
        each = value if isinstance(value, tuple) else (value,)
        if key not in found and all(one is None or isinstance(one, _PLAIN) for one in each):
            found[key] = value
    return found


def _constructor_faults(what: Kind, cls: type) -> Iterator[str]:
    """What keeps the product from making one."""
    if not inspect.isclass(cls):
        yield f"{cls!r} is no class"
        return
    said = f"it is made as {cls.__name__}({', '.join(what.given)}{', ...' if what.by_name else ''})"
    asked = inspect.signature(cls)
    try:
        if what.by_name:
            asked.bind_partial(**dict.fromkeys(what.given))
        else:
            asked.bind(*what.given)
    except TypeError as error:
        yield f"{said}, and {signature(cls)} does not take that: {error}"


def _method_faults(what: Kind, cls: type) -> Iterator[str]:
    """Methods that the product calls and cannot."""
    for name, arguments in what.methods.items():
        method = getattr(cls, name, None)
        call = f"{name}({', '.join(arguments)})"
        if not callable(method):
            yield f"{cls.__name__} has no method {call}"
            continue
        try:
            inspect.signature(method).bind(None, *arguments)
        except TypeError as error:
            yield f"{cls.__name__}.{name} is called as {call}: {error}"
