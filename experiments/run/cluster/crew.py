"""Who does the work of a command: processes of this machine, or a cluster."""

from __future__ import annotations

from collections.abc import Callable

from specfleet.experiments.run.cluster import LOCAL
from specfleet.experiments.run.processes import Workers, default_jobs
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults


def crew(jobs: int | None, cluster: str | None, say: Callable[[str], None]) -> Workers:
    """Returns who is to work, to be entered with `with`.

    Args:
        jobs: processes; None: as many as there are processors.
        cluster: address of a Dask scheduler, or `local`; None is processes.
        say: told of what the user has to know of a cluster.

    Raises:
        InputFaults: a number of processes beside an address, or Dask is not installed.
    """
    if cluster is None:
        return Workers(jobs or default_jobs())
    if jobs is not None and cluster != LOCAL:
        message = (
            f"counts processes of this machine; the workers of {cluster} are as many as were started there"
        )
        raise InputFaults([Fault(COMMAND_LINE, 0, "--jobs", f"{message}, so leave it out")])
    from specfleet.experiments.run.cluster.workers import ClusterWorkers

    return ClusterWorkers(cluster, jobs or default_jobs(), say)


def of_python(jobs: int, cluster: str | None, say: Callable[[str], None]) -> Workers:
    """Returns who is to work for a function, whose `jobs` of 1 says nothing where there is a cluster."""
    return crew(None if cluster and jobs == 1 else jobs, cluster, say)
