"""Specfleet: does speculative decoding pay on your model, your GPU, your traffic?

    import specfleet as sf

    experiment = sf.load("demo.yaml", {"workload.max_concurrency": 8})
    result = experiment.run(jobs=4)
    print(result.answer)

Everything below is imported when it is first asked for.
"""

import os

__version__ = "0.1.0"

if not os.path.isdir(os.path.join(__path__[0], "sim")):  # noqa: PTH112, PTH118 (light)
    raise ImportError(
        f"{__path__[0]} lacks the packages it is made of: it comes from a clone without symbolic links; "
        "clone again with `git clone -c core.symlinks=true`"
    )

TYPE_CHECKING = False  # typing's own takes 8 ms to import
if TYPE_CHECKING:
    from specfleet.experiments.api import register
    from specfleet.experiments.api.experiment import Experiment, load
    from specfleet.experiments.api.result import Result, results
    from specfleet.experiments.api.studies import breakeven, plan
    from specfleet.experiments.schema.faults import UserError
    from specfleet.sim.simulation import RunResult, Scenario, simulate
    from specfleet.sim.speculation.own import draws

_HOMES = {
    "Experiment": "experiments.api.experiment",
    "Result": "experiments.api.result",
    "RunResult": "sim.simulation",
    "Scenario": "sim.simulation",
    "UserError": "experiments.schema.faults",
    "breakeven": "experiments.api.studies",
    "draws": "sim.speculation.own",
    "load": "experiments.api.experiment",
    "plan": "experiments.api.studies",
    "register": "experiments.api",
    "results": "experiments.api.result",
    "simulate": "sim.simulation",
}

__all__ = [
    "Experiment",
    "Result",
    "RunResult",
    "Scenario",
    "UserError",
    "__version__",
    "breakeven",
    "draws",
    "load",
    "plan",
    "register",
    "results",
    "simulate",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
