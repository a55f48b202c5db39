"""The traffic of a plan, and the share of it that one replica sees."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from specfleet.experiments.point.build import counted_requests, requests, requests_asked
from specfleet.experiments.point.days import peak_of
from specfleet.experiments.schema.blocks.deployment import Deployment
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.plan import Plan
from specfleet.experiments.schema.blocks.workload import Workload
from specfleet.workloads.requests import RequestTable


@dataclass(frozen=True)
class Trial:
    """One simulation of a plan.

    Args:
        config: engine and load; `deployment.replicas` engines are simulated.
        seed: of requests and luck.
        share: of a trace with its own times, every share-th request is taken: what one of so many replicas
            sees behind a router that deals them out in turn.
        rows: of the requests, at most this many; None is all.
        output_factor: on the output lengths.
        acceptance_factor: on the conditional acceptance of every draft.
        step_factor: on the time of every step, and of the client.
        hour_s: it is a day whose hours last so long; they are asked for, and no series is kept. 0: no day.
    """

    config: Experiment
    seed: int
    share: int = 1
    rows: int | None = None
    output_factor: float = 1.0
    acceptance_factor: float = 1.0
    step_factor: float = 1.0
    hour_s: float = 0.0

    def table(self) -> RequestTable:
        """Returns its requests."""
        table = requests(self.config, self.seed)
        if self.share > 1:
            table = _every(table, self.share, self.seed % self.share)
        if self.rows is not None:
            table = table.head(self.rows)
        if self.output_factor != 1.0:
            table = _longer(table, self.output_factor, self.config.serve.max_model_len or 0)
        if self.step_factor != 1.0:
            table = dataclasses.replace(table, arrival_s=table.arrival_s / self.step_factor)
        return table


def _every(table: RequestTable, share: int, first: int) -> RequestTable:
    """Every `share`-th request, at the times recorded."""
    return table.taken(np.arange(first, len(table), share))


def _longer(table: RequestTable, factor: float, max_model_len: int) -> RequestTable:
    """The same requests with other output lengths, as far as the context allows."""
    room = max_model_len - table.prompt_tokens
    output = np.clip(np.rint(table.output_tokens * factor).astype(np.int64), 1, room)
    most = np.clip(np.rint(table.max_tokens * factor).astype(np.int64), output, room)
    return dataclasses.replace(table, output_tokens=output, max_tokens=most)


@dataclass(frozen=True)
class Traffic:
    """What is asked of the whole deployment, and how it may differ from what is expected.

    Attributes:
        rate: requests/s at the peak, growth included; of a trace, its mean.
        recorded: arrivals are a trace's own times.
        output_factor, acceptance_factor, step_factor: 1 as expected.
        rate_factor: on a trace's own times; 1 for rates, which `rate` says.
    """

    rate: float
    recorded: bool = False
    output_factor: float = 1.0
    acceptance_factor: float = 1.0
    rate_factor: float = 1.0
    step_factor: float = 1.0

    @classmethod
    def of(cls, experiment: Experiment) -> Traffic:
        """Returns the traffic of a plan."""
        plan = experiment.plan or Plan()
        peak = peak_of(plan)
        if peak is not None:
            return cls(peak)
        rate = experiment.workload.request_rate
        if rate is not None and math.isfinite(rate):
            return cls(plan.growth * rate)
        table = requests(experiment, experiment.seed)
        seconds = float(table.arrival_s[-1] - table.arrival_s[0])
        return cls(
            plan.growth * (len(table) - 1) / max(seconds, 1e-9), recorded=True, rate_factor=plan.growth
        )

    def scaled(self, factor: float) -> Traffic:
        """Returns the same traffic at `factor` times the rate."""
        return dataclasses.replace(self, rate=self.rate * factor, rate_factor=self.rate_factor * factor)

    def trial(self, config: Experiment, replicas: int, seed: int, prompts: int | None = None) -> Trial:
        """Returns the simulation of one replica of `replicas` that share the traffic.

        Args:
            config: the engine.
            replicas: that share it.
            seed: of requests and luck.
            prompts: requests to simulate; None: as many as the file says.
        """
        workload = config.workload
        if self.recorded:
            faster = workload.model_copy(update={"speed": workload.speed * self.rate_factor})
            return self._trial(config, faster, seed, replicas, prompts)
        shape = dealt(workload.gap_shape, replicas, config.deployment.routing.then)
        single = workload.model_copy(
            update={
                "request_rate": self.rate / replicas,
                "burstiness": workload.gap_shape if workload.rate_of_classes else shape,
                "cv": None,
                "num_prompts": prompts or _asked(workload),
            }
        )
        return self._trial(config, single, seed)

    def whole(self, config: Experiment, replicas: int, seed: int, prompts: int | None = None) -> Trial:
        """Returns the simulation of the whole deployment behind its router, `prompts` for each replica."""
        workload = config.workload
        if self.recorded:
            update: dict[str, object] = {"speed": workload.speed * self.rate_factor}
        else:
            asked = prompts or _asked(workload)
            warmups = requests_asked(workload, workload.num_warmups)
            update = {"num_prompts": asked and replicas * asked, "num_warmups": replicas * warmups}
            update["request_rate"] = self.rate
        deployed = config.deployment
        if not deployed.pools:
            deployed = Deployment(replicas=replicas, router=deployed.routing.then)
        return self._trial(
            config.model_copy(update={"deployment": deployed}), workload.model_copy(update=update), seed
        )

    def closed(self, config: Experiment, concurrency: int, seed: int, prompts: int) -> Trial:
        """Returns the simulation of one replica with a fixed number of requests in flight."""
        update: dict[str, object] = {
            "max_concurrency": concurrency,
            "request_rate": math.inf,
            "arrivals": None,
            "num_prompts": prompts,
            "num_warmups": 2 * concurrency,
        }
        if self.recorded:
            update["num_warmups"] = 0
        return self._trial(config, config.workload.model_copy(update=update), seed)

    def _trial(
        self, config: Experiment, workload: Workload, seed: int, share: int = 1, rows: int | None = None
    ) -> Trial:
        return Trial(
            config.model_copy(update={"workload": workload}),
            seed,
            share,
            rows,
            self.output_factor,
            self.acceptance_factor,
            self.step_factor,
        )


def _asked(workload: Workload) -> int | None:
    """Returns the requests asked for; None where a rate that changes brings as many as it does."""
    return None if workload.arrivals and workload.num_prompts is None else counted_requests(workload)


def dealt(burstiness: float, replicas: int, router: str) -> float:
    """Returns the gamma shape of the arrivals that one of `replicas` sees.

    Dealt out in turn, a gap is the sum of `replicas` gaps: a gamma of `replicas` times the shape, exactly. At
    random, a geometric number of gaps: squared variation `(1/b) p + 1 - p` with p = 1 / replicas, which is
    exact for Poisson arrivals. A router that looks at the load is taken as in turn, and held against the
    whole deployment at the end.
    """
    if router == "random":
        share = 1.0 / replicas
        return 1.0 / (share / burstiness + 1.0 - share)
    return burstiness * replicas
