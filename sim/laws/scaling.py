"""Laws of pools whose replicas come and go."""

from __future__ import annotations

import numpy as np

from specfleet.sim.errors import Breach
from specfleet.sim.fleet.scaling import ScalingLog
from specfleet.sim.laws.names import SCALING
from specfleet.sim.scenario import ReplicaPool, RunResult


def check_scaling(result: RunResult) -> None:
    """Checks the numbers of replicas of each pool, and that each works while it is paid for.

    Raises:
        Breach: a law does not hold.
    """
    loses = result.scenario.deployment.failures is not None
    for pool, part in zip(result.scenario.pools, result.parts, strict=True):
        if part.scaling is not None:
            _check_numbers(pool, part.scaling, loses)
            _check_order(part.scaling)
            _check_work(part, part.scaling.stays)


def _check_numbers(pool: ReplicaPool, log: ScalingLog, loses: bool) -> None:
    """As many are up, and no more are there, than the bounds say; who is lost is replaced, or waited for."""
    config, rows = pool.autoscale, log.changes
    assert config is not None
    ordered = rows["starting"] + rows["up"]
    paid = ordered + rows["draining"]
    wrongs = [] if loses else [(rows["up"] < config.least, f"fewer than {config.least} are up")]
    wrongs += [
        (ordered + rows["missing"] < config.least, f"fewer than {config.least} are ordered"),
        (paid > config.most, f"there are more than {config.most}"),
        (paid + rows["noticed"] > config.slots, f"there are more than {config.slots}"),
    ]
    for wrong, said in wrongs:
        if wrong.any():
            raise Breach(SCALING, said, time_s=float(rows["time_s"][wrong.argmax()]))


def _check_order(log: ScalingLog) -> None:
    """Each stay is ordered, up, draining, gone, in this order."""
    stays = log.stays
    times = np.stack([stays[name] for name in ("ordered_s", "up_s", "draining_s", "gone_s")])
    known = np.where(np.isnan(times), -np.inf, times)
    late = np.maximum.accumulate(known, axis=0) > np.where(np.isnan(times), np.inf, times)
    if late.any():
        at = int(late.any(axis=0).argmax())
        raise Breach(SCALING, "it was gone before it came", replica=int(stays["replica"][at]))


def _check_work(part: RunResult, stays: dict[str, np.ndarray]) -> None:
    """Who is sent to a replica finds it up, and its steps begin while it is there; of requests that were
    begun more than once, each time."""
    requests, attempts = part.requests, part.attempts
    served = np.isfinite(requests["admitted_s"])
    sent = {name: requests[name][served] for name in ("replica", "arrived_s", "request_id")}
    if attempts:
        once = ~np.isin(sent["request_id"], attempts["request_id"])
        sent = {name: np.concatenate([column[once], attempts[name]]) for name, column in sent.items()}
    gone = np.where(np.isnan(stays["gone_s"]), np.inf, stays["gone_s"])
    until = {"arrived_s": np.fmin(stays["draining_s"], gone), "start_s": gone}
    for what, columns, key in (
        ("a request was sent there", sent, "arrived_s"),
        ("a step began", part.iterations, "start_s"),
    ):
        _within(what, columns["replica"], columns[key], stays["replica"], stays["up_s"], until[key])


def _within(
    what: str,
    replica: np.ndarray,
    at_s: np.ndarray,
    number: np.ndarray,
    since_s: np.ndarray,
    until_s: np.ndarray,
) -> None:
    """Checks that things happen at replicas while those are up."""
    for one in np.unique(replica).tolist():
        mine = (number == one) & ~np.isnan(since_s)
        up_s, ends_s = since_s[mine], until_s[mine]
        times = at_s[replica == one]
        stay = np.searchsorted(up_s, times, side="right") - 1
        wrong = (stay < 0) | (times > ends_s[np.maximum(stay, 0)])
        if wrong.any():
            said = f"{what} while it was not up"
            raise Breach(SCALING, said, time_s=float(times[wrong.argmax()]), replica=int(one))
