"""A user's own router, policy, drafter process and step price: named by a file, obeyed, said in results."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import specfleet as sf
from specfleet.experiments.load.starter import json_schema
from specfleet.experiments.point.acceptance_specs import scaled
from specfleet.experiments.schema import registry
from specfleet.experiments.schema.faults import InputFaults
from specfleet.sim.router import ROUTERS
from specfleet.sim.speculation.processes import process

MINE = """
import numpy as np

import specfleet as sf
from specfleet.hardware.stepcost import KernelCost
from specfleet.sim.speculation.policy import OneForAll


@sf.register.router("turns")
class Turns:
    def __init__(self, seed: int) -> None:
        self.next = -1

    def pick(self, request_id, replicas):
        self.next += 1
        return self.next % len(replicas)


@sf.register.policy("quiet")
class Quiet(OneForAll):
    def __init__(self, k: int, queue: int, share: float = 0.0) -> None:
        if share > 1:
            raise ValueError(f"share is {share}; it must be at most 1")
        self.k, self.queue, self.share = k, queue, share

    def choose(self, rows, kv_tokens, waiting):
        return int(self.k * self.share) if waiting >= self.queue else self.k


@sf.register.acceptance("coins")
class Coins:
    def __init__(self, k: int, seed: int, alpha: float = 0.7) -> None:
        self.k, self.seed, self.alpha = k, seed, alpha

    def accepted(self, request_id, rounds, prompt_tokens, temperature):
        survival = self.alpha ** np.arange(1, self.k + 1)
        return (sf.draws(self.seed, request_id, rounds)[:, None] < survival).sum(axis=1)


@sf.register.cost_model("times")
class Times(KernelCost):
    def seconds(self, shape):
        return 1.0 * super().seconds(shape)
"""
SHIPPED = """
name: small
replications: 2
serve:
  model: llama-3.1-8b-instruct
  gpu: h100-sxm
  max_model_len: 2048
  max_num_seqs: 4
  speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
  draft_policy: {disable_above_queue: {queue: 2}}
  cost_model: kernels
acceptance: {conditional_acceptance: 0.7, concentration: .inf}
deployment: {replicas: 2, router: round_robin}
workload: {input_len: 100, output_len: 30, request_rate: 40.0, num_prompts: 60}
"""
OWN = {
    "deployment.router": "turns",
    "serve.draft_policy": {"quiet": {"queue": 2}},
    "acceptance": {"process": "coins", "alpha": 0.7},
    "serve.cost_model": "times",
}
ROUTER = "class Mine:\n  def __init__(self, seed): ...\n  def pick(self, request_id, replicas): return 0\n"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """An experiment that names nothing of one's own, beside a file with something of every kind."""
    (tmp_path / "mine.py").write_text(MINE)
    path = tmp_path / "small.yaml"
    path.write_text(SHIPPED + "plugins: [mine.py]\n")
    return path


def defined(text: str, name: str = "Mine") -> type:
    """The class that a text defines."""
    space: dict[str, type] = {}
    exec("import specfleet as sf\n" + text, space)
    return space[name]


def files(result: sf.Result) -> dict[str, bytes | str]:
    """What a run found, by file, but for how much of it was stepped."""
    found: dict[str, bytes | str] = {
        str(path.relative_to(result.folder)): path.read_bytes() for path in result.folder.rglob("points/*/*")
    }
    for name, content in found.items():
        if name.endswith("engine.json"):
            engine = json.loads(content)
            engine.pop("stepped", None)
            found[name] = json.dumps(engine)
    return found


@pytest.mark.parametrize("key", OWN)
def test_code_of_ones_own_that_does_as_the_shipped_gives_its_bytes(small: Path, key: str) -> None:
    assert files(sf.load(small, {key: OWN[key]}).run()) == files(sf.load(small).run())


@settings(deadline=None, max_examples=10)
@given(alpha=st.sampled_from([0.0, 0.3, 1.0]) | st.floats(0.05, 0.95), k=st.integers(1, 5))
def test_a_process_is_asked_for_every_request_at_its_own_parameters(alpha: float, k: int) -> None:
    defined(MINE, "Coins")
    changes = {"acceptance": {"process": "coins", "alpha": alpha}, "serve.draft_policy": None}
    data = yaml.safe_load(SHIPPED)
    data["serve"]["speculative_config"]["num_speculative_tokens"] = k
    bench = sf.load(data, changes, replications=1).run().bench()
    expected = sum(alpha**i for i in range(1, k + 1)) / k
    assert abs(float(str(bench["spec_decode_acceptance_rate"])) / 100 - expected) < 0.12


@pytest.mark.parametrize("key", OWN)
def test_what_the_calendar_does_not_know_is_stepped_and_said(small: Path, key: str) -> None:
    experiment = sf.load(small, {key: OWN[key]})
    ran = sf.simulate(experiment.scenario(), experiment.requests(), 0)
    if key == "serve.cost_model":
        assert (ran.stepped_share, ran.stepped_because) == (0.0, "")
    else:
        assert ran.stepped_share == 1.0
        assert ran.stepped_because
        assert "its points are stepped: " in experiment.notices[0]


def test_a_price_of_ones_own_is_paid(small: Path) -> None:
    mine = small.with_name("mine.py")
    terms = "    def terms(self, some):\n        return {k: 2 * v for k, v in super().terms(some).items()}\n"
    mine.write_text(MINE.replace("1.0 * super", "2.0 * super") + terms)
    alone = {"request_rate": float("inf"), "max_concurrency": 1}
    dear, plain = (
        sf.load(small, {"serve.cost_model": name}, workload=alone).run() for name in ("times", "kernels")
    )
    ratio = dear.summary["mean_tpot_ms"] / plain.summary["mean_tpot_ms"]
    assert 1.95 < float(ratio.iloc[0]) < 2.05


@pytest.mark.parametrize("methods", [["spawn"], ["spawn", "forkserver"]])
def test_workers_load_plugins_however_they_start(
    small: Path, methods: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = files(sf.load(small, OWN).run())
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: methods)
    assert files(sf.load(small, OWN).run(jobs=2)) == alone


def test_workers_know_what_a_module_registered(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_for_workers.py").write_text(ROUTER)
    from own_for_workers import Mine  # type: ignore[import-not-found]

    sf.register.router("nought", Mine)
    found = sf.load(small, {"deployment.router": "nought"}).run(jobs=2)
    assert set(found.requests["replica"]) == {0}


def test_what_other_processes_cannot_import_is_refused_with_what_to_do(small: Path) -> None:
    class Here:
        def __init__(self, seed: int) -> None:
            pass

        def pick(self, request_id: int, replicas: object) -> int:
            return 1

    sf.register.router("here", Here)
    experiment = sf.load(small, {"deployment.router": "here"})
    with pytest.raises(sf.UserError, match=r"router here, Here\(seed: int\) of .*plugins:, or use jobs=1"):
        experiment.run(jobs=2)
    assert set(experiment.run().requests["replica"]) == {1}


def test_the_file_with_every_default_and_the_hash_of_the_code_loads_again(
    small: Path, tmp_path: Path
) -> None:
    whole = sf.load(small, OWN)
    again = tmp_path / "elsewhere" / "resolved.yaml"
    again.parent.mkdir()
    again.write_text(whole.yaml)
    assert sf.load(again).points == whole.points
    said = yaml.safe_load(whole.yaml)
    assert said["serve"]["draft_policy"]["quiet"] == {"queue": 2, "share": 0.0}
    assert said["acceptance"] == {"source": "not stated", "process": "coins", "alpha": 0.7}
    small.with_name("mine.py").write_text(MINE + "\n")
    with pytest.raises(sf.UserError, match=r"resolved\.yaml:\d+: plugins\[0\]: .*mine\.py has changed since"):
        sf.load(again)


def test_files_without_code_of_ones_own_say_nothing_of_it(small: Path) -> None:
    plain = sf.load(small, {"plugins": []})
    assert "plugins" not in plain.yaml and "process:" not in plain.yaml
    assert "own" not in plain.run().manifest


def test_results_say_whose_code_made_them(small: Path) -> None:
    result = sf.load(small, OWN).run()
    own = result.manifest["own"]
    assert isinstance(own, list)
    assert {entry["kind"]: entry["class"].partition("(")[0] for entry in own} == {
        "router": "Turns",
        "policy": "Quiet",
        "acceptance": "Coins",
        "cost_model": "Times",
    }
    assert {entry["file"] for entry in own} == {str(small.with_name("mine.py"))}
    assert "router turns, Turns(seed: int)" in json.dumps(result.manifest["notices"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"deployment.router": "tuns"}, "deployment.router: 'tuns' is not supported; .*did you mean turns?"),
        (
            {"deployment.router": "x"},
            "use one of round_robin, .*name the file that registers your own under plu",
        ),
        ({"serve.cost_model": "tims"}, "serve.cost_model: 'tims' is not supported; .*did you mean times?"),
        (
            {"serve.draft_policy": {"qiet": {}}},
            "draft_policy.qiet: 'qiet' is not supported.*did you mean quiet?",
        ),
        ({"serve.draft_policy": {"quiet": 3}}, "draft_policy.quiet: must be a mapping, not 3"),
        (
            {"serve.draft_policy": {"quiet": {}}},
            r"quiet: lacks queue, which Quiet\(k: int, queue: int, share",
        ),
        ({"serve.draft_policy": {"quiet": {"queue": "2"}}}, "quiet.queue: must be a whole number, not '2'"),
        (
            {"serve.draft_policy": {"quiet": {"queue": 2, "share": 2}}},
            "quiet.share: Quiet.* refuses it: share is 2",
        ),
        (
            {"serve.draft_policy": {"quiet": {"queue": 2, "sahre": 1}}},
            r"quiet.sahre: is no parameter of Quiet\(k",
        ),
        (
            {"acceptance": {"process": "coin"}},
            "acceptance.process: 'coin' is not supported.*did you mean coins?",
        ),
        (
            {"acceptance": {"process": "coins", "beta": 1}},
            r"acceptance.beta: is no parameter of Coins\(k: int, s",
        ),
        (
            {"acceptance": {"process": "coins", "decay": 0.9}},
            "acceptance.decay: belongs to the shipped processes",
        ),
        ({"acceptance": {"alpha": 0.7}}, "acceptance.alpha: unknown key|acceptance.alpha: must be a mapping"),
    ],
)
def test_a_mistake_about_ones_own_is_said_at_its_key(
    small: Path, change: dict[str, object], said: str
) -> None:
    with pytest.raises(sf.UserError, match=f"^overrides: .*{said}"):
        sf.load(small, change)


def test_a_mistake_is_said_at_its_line(small: Path) -> None:
    beside = {"acceptance.process": "coins", "serve.draft_policy.quiet": {"queue": 2}}
    with pytest.raises(InputFaults) as mistake:
        sf.load(small, beside)
    assert [(fault.line, fault.key) for fault in mistake.value.faults] == [
        (10, "serve.draft_policy"),
        (12, "acceptance.concentration"),
        (12, "acceptance.conditional_acceptance"),
    ]
    own = "\n    quiet:\n      queue: two"
    small.write_text(small.read_text().replace(" {disable_above_queue: {queue: 2}}", own))
    with pytest.raises(InputFaults) as mistake:
        sf.load(small)
    assert str(mistake.value).startswith(
        f"{small}:12: serve.draft_policy.quiet.queue: must be a whole number, not 'two'"
    )


@pytest.mark.parametrize(
    ("listed", "code", "said"),
    [
        (
            "mine.py",
            "x = 1\ny = nothing\n",
            r"small.yaml:15: plugins\[0\]: .*mine.py:2: NameError: name 'nothing'",
        ),
        ("mine.py", "x = (\n", r"mine.py:1: SyntaxError: '\(' was never closed"),
        ("other.py", "", "other.py cannot be read: No such file or directory; check the path"),
        ("no.module", "", "there is no module no.module; install it, or name a file that ends in .py"),
        ("{file: mine.py, module: json}", "", "must have a file or a module"),
        ("3", "", r"plugins\[0\]: must be a mapping, not 3"),
    ],
)
def test_a_plugin_that_cannot_be_had_is_said_at_its_line(
    small: Path, listed: str, code: str, said: str
) -> None:
    small.with_name("mine.py").write_text(code)
    small.write_text(SHIPPED + f"plugins: [{listed}]\n")
    with pytest.raises(sf.UserError, match=said):
        sf.load(small)


def test_a_plugin_that_fails_registers_nothing_and_leaves_what_was_there(small: Path) -> None:
    sf.load(small, OWN)
    before = dict(registry.OWN)
    more = ROUTER + "sf.register.router('more', Mine)\nraise RuntimeError('late')\n"
    small.with_name("mine.py").write_text(MINE.replace("1.0 *", "3.0 *") + more)
    with pytest.raises(sf.UserError, match="RuntimeError: late"):
        sf.load(small)
    assert before == registry.OWN
    assert registry.KINDS["cost_model"].known["times"] is before["cost_model", "times"].cls


def test_a_plugin_is_loaded_once_and_again_when_it_has_changed(small: Path) -> None:
    counted = "import json\njson.loaded_here = getattr(json, 'loaded_here', 0) + 1\n"
    small.with_name("mine.py").write_text(MINE + counted)
    for _ in range(3):
        sf.load(small)
    assert json.loaded_here == 1  # type: ignore[attr-defined]
    small.with_name("mine.py").write_text(MINE.replace("alpha: float = 0.7", "alpha: float = 0.6") + counted)
    assert "alpha: 0.6" in sf.load(small, {"acceptance": {"process": "coins"}}).yaml
    small.with_name("mine.py").write_text(counted.replace("json.loaded_here =", "json.loaded_here = -1 +"))
    with pytest.raises(sf.UserError, match="router: 'turns' is not supported"):
        sf.load(small, {"deployment.router": "turns"})
    small.with_name("mine.py").write_text(MINE)
    assert json.loaded_here == 2  # type: ignore[attr-defined]
    del json.loaded_here  # type: ignore[attr-defined]


def test_a_name_means_one_class(small: Path) -> None:
    sf.load(small)
    with pytest.raises(
        sf.UserError, match=r"router turns: is registered already, as router turns, Turns\(seed"
    ):
        sf.register.router("turns", defined(ROUTER))
    with pytest.raises(sf.UserError, match="router random: is shipped already; choose another name"):
        sf.register.router("random", defined(ROUTER))
    with pytest.raises(sf.UserError, match="router my router: is no name"):
        sf.register.router("my router", defined(ROUTER))


def test_a_class_defined_again_takes_the_place_of_what_it_was() -> None:
    first, second = (sf.register.router("again", defined(ROUTER)) for _ in range(2))
    assert first is not second
    assert registry.KINDS["router"].known["again"] is second


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("router", ROUTER.replace("seed", ""), r"made as Mine\(seed\), and Mine\(\) does not take that"),
        ("router", ROUTER.replace("pick", "choose"), r"Mine has no method pick\(request_id, replicas\)"),
        (
            "router",
            ROUTER.replace(", replicas", ""),
            r"pick is called as pick\(request_id, replicas\): too many",
        ),
        ("policy", ROUTER, r"made as Mine\(k, ...\), and Mine\(seed\) .*unexpected keyword argument 'k'"),
        (
            "acceptance",
            ROUTER,
            r"Mine has no method accepted\(request_id, rounds, prompt_tokens, temperature\)",
        ),
        (
            "cost_model",
            ROUTER,
            r"no method seconds\(shape\); Mine has no method terms.*no method summary\(\)",
        ),
    ],
)
def test_a_class_that_the_product_cannot_call_is_refused(kind: str, text: str, said: str) -> None:
    with pytest.raises(sf.UserError, match=said):
        getattr(sf.register, kind)("mine", defined(text))
    assert not registry.OWN


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("return -1.0 * super().seconds(shape)", "a step takes more than none"),
        ("return 1.5 * super().seconds(shape)", "its terms at .*make them agree"),
        ("raise RuntimeError('no price')", "times cannot price a step: RuntimeError: no price"),
    ],
)
def test_a_price_that_makes_no_sense_is_refused(small: Path, change: str, said: str) -> None:
    small.with_name("mine.py").write_text(MINE.replace("return 1.0 * super().seconds(shape)", change))
    with pytest.raises(sf.UserError, match=f"serve.cost_model: .*{said}"):
        sf.load(small, {"serve.cost_model": "times"})


@pytest.mark.parametrize("answer", ["[k + 1] * rounds", "[0.5] * rounds", "[0] * (rounds - 1)", "None"])
def test_a_process_that_answers_nonsense_is_named(small: Path, answer: str) -> None:
    nonsense = MINE.partition("        survival")[0] + f"        k = self.k\n        return {answer}\n"
    small.with_name("mine.py").write_text(nonsense)
    with pytest.raises(sf.UserError, match=r"acceptance process coins must answer .* whole numbers, 0 to 3"):
        sf.load(small, {"acceptance": {"process": "coins"}}).run()


def test_ones_own_can_be_swept_and_given_by_class(small: Path) -> None:
    axes: dict[str, list[object]] = {
        "deployment.router": ["round_robin", "turns"],
        "serve.draft_policy.quiet.share": [0.0, 0.5],
    }
    changes = {"serve.draft_policy": OWN["serve.draft_policy"], "sweep.axes": axes}
    assert len(sf.load(small, changes).points) == 4
    mix = {"workload.mix": {"chat": 0.5, "code": 0.5}}
    coins = {"chat": {"process": "coins"}, "code": {"conditional_acceptance": 0.5}}
    by_class = sf.load(small, mix | {"acceptance": coins})
    assert sf.load({**yaml.safe_load(by_class.yaml)}).points == by_class.points


def test_editors_offer_shipped_names_and_take_others() -> None:
    router = json_schema()["$defs"]["Deployment"]["properties"]["router"]
    assert router["oneOf"][0]["anyOf"] == [{"enum": list(ROUTERS)}, {"type": "string"}]


def test_a_study_scales_a_process_of_ones_own(small: Path) -> None:
    spec = sf.load(small, OWN).scenario().acceptance[""]
    whole, half = (process(scaled(spec, factor), 3, 0).confidence(0, 1000) for factor in (1.0, 0.5))
    assert whole == pytest.approx([0.7, 0.49, 0.343], abs=0.02)
    assert half == pytest.approx([0.35, 0.35**2, 0.35**3], abs=0.02)
