"""Laws of a deployment whose replicas follow the load."""

from __future__ import annotations

import numpy as np

from specfleet.sim.errors import Breach
from specfleet.sim.laws.names import SCALING
from specfleet.sim.scenario import RunResult


def check_scaling(result: RunResult) -> None:
    """Checks the numbers of replicas, and that each works while it is paid for.

    Raises:
        Breach: a law does not hold.
    """
    config, log = result.scenario.deployment.autoscale, result.scaling
    assert config is not None
    assert log is not None
    rows, stays = log.changes, log.stays
    ordered = rows["starting"] + rows["up"]
    for wrong, said in (
        (rows["up"] < config.least, f"fewer than {config.least} are up"),
        (ordered < config.least, f"fewer than {config.least} are ordered"),
        (ordered + rows["draining"] > config.most, f"there are more than {config.most}"),
    ):
        if wrong.any():
            raise Breach(SCALING, said, time_s=float(rows["time_s"][wrong.argmax()]))
    times = np.stack([stays[name] for name in ("ordered_s", "up_s", "draining_s", "gone_s")])
    known = np.where(np.isnan(times), -np.inf, times)
    late = np.maximum.accumulate(known, axis=0) > np.where(np.isnan(times), np.inf, times)
    if late.any():
        at = int(late.any(axis=0).argmax())
        raise Breach(SCALING, "it was gone before it came", replica=int(stays["replica"][at]))
    requests, steps = result.requests, result.iterations
    served = np.isfinite(requests["admitted_s"])
    for what, columns, key, last in (
        (
            "a request was sent there",
            {k: requests[k][served] for k in ("replica", "arrived_s")},
            "arrived_s",
            "draining_s",
        ),
        ("a step began", steps, "start_s", "gone_s"),
    ):
        _within(what, columns["replica"], columns[key], stays, last)


def _within(
    what: str, replica: np.ndarray, at_s: np.ndarray, stays: dict[str, np.ndarray], last: str
) -> None:
    """Checks that things happen at replicas while those are up."""
    until = np.where(np.isnan(stays[last]), np.inf, stays[last])
    for number in np.unique(replica).tolist():
        mine = stays["replica"] == number
        mine &= ~np.isnan(stays["up_s"])
        up_s, until_s = stays["up_s"][mine], until[mine]
        times = at_s[replica == number]
        stay = np.searchsorted(up_s, times, side="right") - 1
        wrong = (stay < 0) | (times > until_s[np.maximum(stay, 0)])
        if wrong.any():
            said = f"{what} while it was not up"
            raise Breach(SCALING, said, time_s=float(times[wrong.argmax()]), replica=int(number))
