"""A law imitates recorded traffic: as uneven on every scale, with the same lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specfleet.workloads.rates import RateArrivals, schedule
from specfleet.workloads.traces.formats import read_trace
from specfleet.workloads.traces.imitation import GOOD, SHAPES, Imitation, clock_step_s, imitate

TRACES = Path(__file__).parents[3] / "shared" / "traces"
shared = pytest.mark.skipif(not TRACES.is_dir(), reason="recorded traces are not here: ../shared is absent")


def imitated(folder: Path, at_s: np.ndarray) -> Imitation:
    """What imitates requests of one length that came at these times."""
    file = folder / "log.csv"
    rows = "".join(f"{at!r},{100 + i % 7},{10 + i % 3}\n" for i, at in enumerate(at_s.tolist()))
    file.write_text("t,n,m\n" + rows)
    columns = {"arrival_s": "t", "input_tokens": "n", "output_tokens": "m"}
    return imitate(read_trace(file, columns=columns, time_unit="s"))


def errors(law: Imitation) -> list[float]:
    """Errors of the indexes of dispersion, as logarithms."""
    return [abs(float(np.log(mine / real))) for _, real, mine in law.dispersions]


def test_poisson_arrivals_are_one_rate_and_no_stretches(tmp_path: Path) -> None:
    at_s = np.cumsum(np.random.default_rng(1).exponential(0.25, 6000))
    law = imitated(tmp_path, at_s)
    assert (law.every_s, law.requests_per_s) == (None, ())
    assert law.request_rate == pytest.approx(4.0, rel=0.05)
    assert 0.7 <= law.burstiness <= 1.4


@pytest.mark.parametrize("shape", [0.25, 4.0])
def test_gamma_gaps_are_found_again_with_their_shape(tmp_path: Path, shape: float) -> None:
    at_s = np.cumsum(np.random.default_rng(2).gamma(shape, 0.25 / shape, 8000))
    law = imitated(tmp_path, at_s)
    rates = law.requests_per_s or (1.0,)
    assert max(rates) / min(rates) < 1.1, "one rate, or stretches that hardly differ"
    assert abs(SHAPES.index(law.burstiness) - SHAPES.index(shape)) <= 1


def test_a_rate_that_jumps_is_found_where_gaps_alone_cannot_tell_it(tmp_path: Path) -> None:
    at_s = RateArrivals(schedule([2.0, 10.0], 300.0), 1.0, np.random.default_rng(3)).take(12_000)
    law = imitated(tmp_path, at_s)
    assert law.every_s is not None and law.every_s <= 600.0
    assert max(errors(law)) <= GOOD
    assert max(law.requests_per_s) / min(law.requests_per_s) > 3.0


def test_a_rate_holds_none_of_the_chance_of_its_counts(tmp_path: Path) -> None:
    """Counts of a stretch vary by the root of their mean; taken for rates that would come in twice."""
    at_s = RateArrivals(schedule([2.0, 4.0], 600.0), 1.0, np.random.default_rng(4)).take(20_000)
    law = imitated(tmp_path, at_s)
    counts, _ = np.histogram(at_s, np.arange(0.0, at_s[-1], law.every_s or 1.0))
    assert np.var(law.requests_per_s) < np.var(counts / (law.every_s or 1.0))


def test_windows_finer_than_the_clock_are_not_asked_for(tmp_path: Path) -> None:
    at_s = np.floor(np.cumsum(np.random.default_rng(5).exponential(0.3, 3000)) / 3.0) * 3.0
    assert clock_step_s(at_s) == pytest.approx(3.0)
    assert [window for window, _, _ in imitated(tmp_path, at_s).dispersions] == [10.0, 60.0]


@pytest.mark.parametrize("at_s", [[0.0], [5.0, 5.0, 5.0], [0.0, 1.0, 2.5]])
def test_a_recording_that_is_too_short_for_windows_is_imitated_all_the_same(
    tmp_path: Path, at_s: list[float]
) -> None:
    law = imitated(tmp_path, np.array(at_s))
    assert (law.request_rate is None) == (at_s[0] == at_s[-1])
    assert law.dispersions == ()


@shared
@pytest.mark.parametrize(
    "name",
    [
        "azure-2023/AzureLLMInferenceTrace_conv.head7500.csv",
        "azure-2023/AzureLLMInferenceTrace_code.tail8200.csv",
        "mooncake-fast25/conversation_trace.head1159.jsonl",
        "mooncake-fast25/synthetic_trace.head673.jsonl",
        "burstgpt/BurstGPT_1.head400.csv",
    ],
)
def test_real_traffic_is_imitated_within_15_percent_and_its_lengths_within_2(name: str) -> None:
    trace = read_trace(TRACES / name)
    law = imitate(trace)
    assert law.dispersions
    assert max(errors(law)) <= np.log(1.15)
    for quantiles, tokens in (
        (law.prompt, trace.requests.prompt_tokens),
        (law.output, trace.requests.output_tokens),
    ):
        found = [n for _, n in quantiles]
        real = np.percentile(tokens, [p for p, _ in quantiles])
        assert found == pytest.approx(real.tolist(), rel=0.02, abs=0.5)
