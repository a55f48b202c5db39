"""The figures of sessions: what a task takes from its first turn to its last answer, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specfleet.sim.laws.requests import over_s
from specfleet.sim.metrics.samples import F64
from specfleet.sim.recorder import FINISHED, Columns
from specfleet.sim.scenario import RunResult
from specfleet.workloads.requests import RequestTable


def due_s(result: RunResult, table: RequestTable) -> F64:
    """Returns when each request was due, shape `(n,)`: at its arrival, or a pause after the turn before was
    answered, refused or given up."""
    due = np.array(table.arrival_s)
    if table.think_s is not None:
        later = np.flatnonzero(table.turn > 0)
        due[later] = _free_s(result)[later - 1] + table.think_s[later]
    return due


def _free_s(result: RunResult) -> F64:
    """Returns when the user of each request could go on, however it ended: a refusal takes as long to come
    back as an answer does."""
    requests, client = result.requests, result.scenario.client
    over, at_client = over_s(requests), requests["status"] == FINISHED
    if "gave_up_s" in requests:
        at_client = at_client | np.isfinite(requests["gave_up_s"])
    return np.where(at_client, over, over + client.receive_s) + client.turn_s


@dataclass(frozen=True)
class Tasks:
    """The sessions of a run all of whose turns are counted and finished, a value each.

    Attributes:
        task_s: from the first turn's sending to the last chunk of the last answer.
        model_s: of which somebody waited for an answer; the rest are pauses.
        turns: requests.
        prompt_tokens, cached_tokens, output_tokens: over its turns.
        duration_s: from the first send to the last chunk of all counted requests.
        whole_share: of the counted turns, those of whole sessions.
    """

    task_s: F64
    model_s: F64
    turns: F64
    prompt_tokens: F64
    cached_tokens: F64
    output_tokens: F64
    duration_s: float
    whole_share: float

    @classmethod
    def of(cls, requests: Columns, class_ids: Sequence[int] | None = None) -> Tasks:
        """Gathers them from a run's request columns, `session_id` and `turn` among them.

        The last session of a table is whole: tables of sessions end with one.

        Args:
            requests: the columns.
            class_ids: of the traffic classes whose requests are turns; None: of all.
        """
        if class_ids is not None:
            mine = np.isin(requests["class_id"], class_ids)
            requests = {name: column[mine] for name, column in requests.items()}
        good = (requests["counted"] == 1) & (requests["status"] == FINISHED)
        _, session = np.unique(requests["session_id"], return_inverse=True)
        count = int(session.max(initial=-1)) + 1
        turns = np.bincount(session, minlength=count)
        whole = np.bincount(session[good], minlength=count) == turns
        mine = whole[session] & good

        def over_turns(values: F64) -> F64:
            return np.asarray(np.bincount(session[mine], weights=values[mine], minlength=count)[whole])

        first = np.flatnonzero(mine & (requests["turn"] == 0))
        sent, last = requests["sent_s"], requests["last_chunk_s"]
        ends = first + turns[whole] - 1
        return cls(
            task_s=np.asarray(last[ends] - sent[first]),
            model_s=over_turns(last - sent),
            turns=turns[whole].astype(np.float64),
            prompt_tokens=over_turns(requests["prompt_tokens"].astype(np.float64)),
            cached_tokens=over_turns(requests["cached_tokens"].astype(np.float64)),
            output_tokens=over_turns(requests["output_tokens"].astype(np.float64)),
            duration_s=float(last[good].max() - sent[good].min()) if good.any() else 0.0,
            whole_share=float(mine.sum() / max(int((requests["counted"] == 1).sum()), 1)),
        )

    def figures(self, gpus: float | None, usd_per_hour: float | None) -> dict[str, float]:
        """Returns the figures, empty without a whole task.

        Args:
            gpus: of the deployment; None where other requests share them, and nothing says whose they are.
            usd_per_hour: price of all of them; None leaves the money out.

        GPU time a task is that of the whole run, idle or not, by the share of turns that whole tasks have.
        """
        tasks = len(self.task_s)
        if not tasks:
            return {}
        each_s = self.duration_s * self.whole_share / tasks
        prompt = float(self.prompt_tokens.sum())
        found = {
            "tasks": float(tasks),
            "task_throughput": 1.0 / each_s,
            **_spread("task", self.task_s),
            **_spread("task_model", self.model_s),
            "task_turns": float(self.turns.mean()),
            "task_input_tokens": prompt / tasks,
            "task_cached_tokens": float(self.cached_tokens.sum()) / tasks,
            "task_output_tokens": float(self.output_tokens.mean()),
        }
        if gpus is not None:
            found["gpu_s_per_task"] = gpus * each_s
        if usd_per_hour is not None and gpus is not None:
            found["usd_per_task"] = usd_per_hour * each_s / 3600.0
        return found


def _spread(name: str, seconds: F64) -> dict[str, float]:
    """Mean, median, P90 and P99 of times in seconds."""
    p50, p90, p99 = np.percentile(seconds, [50.0, 90.0, 99.0]).tolist()
    return {
        f"mean_{name}_s": float(seconds.mean()),
        f"median_{name}_s": p50,
        f"p90_{name}_s": p90,
        f"p99_{name}_s": p99,
    }
