"""Registration of one's own classes under names that an experiment can then say.

    import specfleet as sf

    @sf.register.router("sticky")
    class Sticky:
        def __init__(self, seed: int) -> None: ...
        def pick(self, request_id, replicas): ...

Each function takes the class as its second argument, too. A command reads registrations from the files that
an experiment names under `plugins:`.

Raises `UserError` where the name is taken, or the class is not what the product calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

from specfleet.experiments.schema.registry import register

Cls = TypeVar("Cls", bound=type)


def _done(kind: str, name: str, cls: Cls | None) -> Cls | Callable[[Cls], Cls]:
    def put(cls: Cls) -> Cls:
        register(kind, name, cls)
        return cls

    return put if cls is None else put(cls)


@overload
def router(name: str) -> Callable[[Cls], Cls]: ...
@overload
def router(name: str, cls: Cls) -> Cls: ...
def router(name: str, cls: Cls | None = None) -> Cls | Callable[[Cls], Cls]:
    """Registers a router for `deployment.router`: made as `cls(seed)`, asked as `sim.router.Router` is."""
    return _done("router", name, cls)


@overload
def policy(name: str) -> Callable[[Cls], Cls]: ...
@overload
def policy(name: str, cls: Cls) -> Cls: ...
def policy(name: str, cls: Cls | None = None) -> Cls | Callable[[Cls], Cls]:
    """Registers a policy, a key of `serve.draft_policy`: made as `cls(k=.., **parameters)`, with `cost=..`
    where its constructor has that; asked as `sim.speculation.policy.Policy` is."""
    return _done("policy", name, cls)


@overload
def acceptance(name: str) -> Callable[[Cls], Cls]: ...
@overload
def acceptance(name: str, cls: Cls) -> Cls: ...
def acceptance(name: str, cls: Cls | None = None) -> Cls | Callable[[Cls], Cls]:
    """Registers a drafter's process for `acceptance.process`: made as `cls(k=.., seed=.., **parameters)`,
    asked as `sim.speculation.own.DraftProcess` is."""
    return _done("acceptance", name, cls)


@overload
def cost_model(name: str) -> Callable[[Cls], Cls]: ...
@overload
def cost_model(name: str, cls: Cls) -> Cls: ...
def cost_model(name: str, cls: Cls | None = None) -> Cls | Callable[[Cls], Cls]:
    """Registers a step price for `serve.cost_model`: made as `cls(placement)`, asked as
    `hardware.stepcost.StepCost` is."""
    return _done("cost_model", name, cls)
