"""What `run:` has no effect on: runs whose number of requests is given otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.bill import switched_off
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.until import Until


def until_notices(experiment: Experiment, points: list[Experiment]) -> Iterator[str]:
    """Says why a stated `run` counts for none of the points; a plan reads it for itself."""
    if experiment.run.bill and any(map(switched_off, points)):
        yield "run.bill: each point that drafts is simulated again without the drafts of each of its classes"
    if experiment.run == Until(bill=experiment.run.bill) or experiment.plan is not None:
        return
    if any(point.workload.goes_on for point in points):
        return
    workload = points[0].workload
    if workload.trace is not None:
        why = "a trace is as long as it is"
    elif workload.changes:
        key = "phases" if workload.phases is not None else "arrivals"
        why = f"workload.{key} says how many requests there are"
    elif experiment.report.requests == "none":
        why = "figures alone (report.requests: none) do not say how well they are known"
    elif experiment.workload.num_prompts is None:
        why = "a burst that comes all at once has a size; give max_concurrency or request_rate"
    else:
        why = "workload.num_prompts fixes the number of requests; leave it out to go on until it is settled"
    yield f"run (precision, at_most) changes nothing: {why}"
