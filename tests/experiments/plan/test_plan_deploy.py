"""Deployment files of a plan: valid for those who read them, and what they start is what was simulated."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_command import faults

from specfleet.experiments.load.defaults import filled
from specfleet.experiments.plan.deploy.compose import HOST_GPUS, compose_text
from specfleet.experiments.plan.deploy.handing import SIDE, SIDE_HOST
from specfleet.experiments.plan.deploy.kubernetes import SCALED_ON, kubernetes_text
from specfleet.experiments.plan.deploy.pool import DeployedPool
from specfleet.experiments.plan.deploy.winner import deployed_name
from specfleet.experiments.plan.deploy.write import deployed_text, missing, write_deployment
from specfleet.experiments.plan.flags import server_command
from specfleet.experiments.schema.blocks.deployment import KvTransfer
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.scaling import Autoscale

EAGLE = {
    "method": "eagle3",
    "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    "num_speculative_tokens": 3,
}


def config(**serve: object) -> Experiment:
    """A filled point with these keys of `serve`."""
    model = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100-sxm", "max_model_len": 4096}
    data = {
        "serve": {**model, **serve},
        "workload": {"preset": "azure-conv-2023", "request_rate": 5.0},
        "acceptance": {"conditional_acceptance": 0.7},
    }
    return filled(Experiment.model_validate(data))


SCALED = Autoscale(metric="concurrency", target=37.5, min=1, max=4, provision_s=60.0, up_most=2)
FAST = DeployedPool("fast", config(speculative_config=EAGLE), 2, ("code",))
WIDE = DeployedPool("rest", config(tensor_parallel_size=2), 2, ("chat", "math"), SCALED)
SGLANG = DeployedPool("sg", config(engine="sglang"), 3)
LARGE = DeployedPool("large", config(tensor_parallel_size=4, gpu="a100-80gb"), 3)
FLEETS = ([FAST], [FAST, WIDE], [SGLANG], [LARGE], [FAST, SGLANG, LARGE])


def documents(pools: list[DeployedPool]) -> list[dict[str, Any]]:
    """A manifest as data."""
    return list(yaml.safe_load_all(kubernetes_text(pools, "least_outstanding")))


def of_kind(pools: list[DeployedPool], kind: str) -> list[dict[str, Any]]:
    """Its documents of one kind."""
    return [document for document in documents(pools) if document["kind"] == kind]


@pytest.mark.parametrize(("pools", "version"), [(FLEETS[1], "1.30"), *((each, "1.37") for each in FLEETS)])
def test_every_manifest_is_valid_for_kubernetes_and_has_no_unknown_key(
    pools: list[DeployedPool], version: str
) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate",
        reason="the schemas of Kubernetes are in kubernetes-validate (pip install '.[dev]')",
    )
    for document in documents(pools):
        validate.validate(document, version, strict=True)
        wrong = {**document, "spec": {**document["spec"], "replica": 3}}
        with pytest.raises(validate.ValidationError):
            validate.validate(wrong, version, strict=True)


@pytest.mark.parametrize("pools", FLEETS, ids=len)
@pytest.mark.parametrize("router", ["round_robin", "least_outstanding", "power_of_two", "least_kv"])
def test_every_compose_file_is_valid_for_compose(pools: list[DeployedPool], router: str) -> None:
    compose = pytest.importorskip(
        "compose_spec", reason="the Compose specification is in compose-spec (pip install '.[dev]')"
    )
    text = compose_text(pools, router)
    read = compose.PyCompose.from_yaml(text)
    read.to_spec()
    assert set(read.services) == set(yaml.safe_load(text)["services"])
    with pytest.raises(ValueError, match=r"healthchek|unknown|service"):
        compose.PyCompose.from_yaml(text.replace("healthcheck:", "healthchek:"))


@pytest.mark.parametrize("pools", FLEETS, ids=len)
def test_what_is_started_is_the_command_that_was_simulated(pools: list[DeployedPool]) -> None:
    for pool, deployment in zip(pools, of_kind(pools, "Deployment"), strict=True):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        started = [*container["command"], *container["args"]]
        simulated = server_command(pool.config)
        assert started[1 : len(simulated)] == simulated[1:]
        assert started[-2:] == ["--port", str(pool.port)]
        assert container["image"] == pool.image and ":v" in pool.image
        if pool.rules == "vllm":
            assert faults(shlex.join(started[:-2])) == []
        else:
            assert started[-4:-2] == ["--host", "0.0.0.0"]
    services = yaml.safe_load(compose_text(pools, "round_robin"))["services"]
    for pool in pools:
        one = services[f"{pool.name}-0"]
        assert [*one["entrypoint"], *one["command"]] == pool.words


def test_the_speculative_config_reaches_the_container_whole() -> None:
    (deployment,) = of_kind([FAST], "Deployment")
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert json.loads(args[args.index("--speculative-config") + 1]) == EAGLE


@pytest.mark.parametrize("pools", FLEETS, ids=len)
def test_gpus_probes_and_the_token_are_there_and_services_find_their_pods(pools: list[DeployedPool]) -> None:
    for pool, deployment, service in zip(
        pools, of_kind(pools, "Deployment"), of_kind(pools, "Service"), strict=True
    ):
        pod = deployment["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": pool.gpus}
        assert {
            container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")
        } == {"/health"}
        (token,) = container["env"]
        assert token["valueFrom"]["secretKeyRef"] == {"name": "hf-token", "key": "token"}
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["spec"]["volumes"]}
        assert "nvidia.com/gpu.product" in pod["spec"]["nodeSelector"]


def test_replicas_are_as_bought_also_where_an_autoscaler_whose_metric_may_be_missing_takes_over() -> None:
    fast, rest = of_kind([FAST, WIDE], "Deployment")
    assert fast["spec"]["replicas"] == rest["spec"]["replicas"] == 2
    (scaler,) = of_kind([FAST, WIDE], "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "rest"
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (1, 4)
    target = scaler["spec"]["metrics"][0]["pods"]
    assert target["target"]["averageValue"] == "37500m"
    assert target["metric"]["name"] == SCALED_ON["concurrency"].replace(":", "_")


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 9)), min_size=1, max_size=4))
def test_no_gpu_of_a_host_is_given_twice_and_every_replica_has_its_own(asked: list[tuple[int, int]]) -> None:
    pools = [DeployedPool(f"p{i}", CONFIGS[tp], replicas) for i, (tp, replicas) in enumerate(asked)]
    services = yaml.safe_load(compose_text(pools, "round_robin"))["services"]
    engines = {name: each for name, each in services.items() if name != "gateway"}
    assert set(engines) == {f"{pool.name}-{n}" for pool in pools for n in range(pool.replicas)}
    taken: dict[str, list[int]] = {}
    for each in engines.values():
        (devices,) = each["deploy"]["resources"]["reservations"]["devices"]
        host = each.get("profiles", ["all"])[0]
        taken.setdefault(host, []).extend(map(int, devices["device_ids"]))
    assert all(len(set(ids)) == len(ids) and max(ids) < HOST_GPUS for ids in taken.values())
    assert ("gateway" in services) == (len(taken) == 1)


CONFIGS = {tp: config(tensor_parallel_size=tp) for tp in (1, 2, 4, 8)}


@pytest.mark.parametrize(
    ("router", "said"), [("least_outstanding", "least_conn;"), ("power_of_two", "random two least_conn;")]
)
def test_the_gateway_of_compose_does_what_was_simulated(router: str, said: str) -> None:
    content = yaml.safe_load(compose_text([FAST], router))["configs"]["gateway"]["content"]
    assert said in content and "server fast-1:8000;" in content
    assert "$" not in content


def test_what_a_service_does_not_do_is_said() -> None:
    text = kubernetes_text([FAST, WIDE], "least_outstanding")
    assert "at random for each connection" in text and "for least_outstanding put a gateway" in text
    assert "Service fast is for code" in text
    assert "deals out in turn" in compose_text([FAST], "least_kv")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "trtllm"}, "file of options"),
        ({"engine": "vllm-2026-01"}, "whose flags may have other names"),
        ({"speculative_config": EAGLE, "draft_policy": {"goodput": {}}}, "draft_policy goodput"),
    ],
)
def test_what_the_files_would_not_start_is_not_written_and_the_reason_is_said(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    pools = [DeployedPool("fleet", config(**changes), 2)]
    assert any(said in reason for reason in missing(pools))
    written = write_deployment(pools, "round_robin", tmp_path)
    assert [path.name for path in written] == ["commands.sh"]
    text = deployed_text(pools, "round_robin")
    assert said in text and "No Kubernetes manifest" in text


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=80))
def test_any_name_of_an_experiment_becomes_one_of_kubernetes(text: str) -> None:
    name = deployed_name(text)
    assert name[0].isalpha() and name[-1].isalnum() and len(name) <= 50
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def apart(transfer: KvTransfer | None = None) -> list[DeployedPool]:
    """A replica that computes prompts and two that decode."""
    way = transfer or KvTransfer()
    drafted = config(speculative_config=EAGLE)
    return [
        DeployedPool("fleet-prefill", drafted, 1, role="prefill", transfer=way),
        DeployedPool("fleet-decode", drafted, 2, role="decode", transfer=way),
    ]


def test_replicas_with_roles_hand_kv_over_and_a_proxy_stands_before_them() -> None:
    pools = apart()
    for deployment, pool in zip(of_kind(pools, "Deployment"), pools, strict=False):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        said = json.loads(container["args"][container["args"].index("--kv-transfer-config") + 1])
        assert said == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        assert faults(shlex.join(pool.words[:-2])) == []
        assert {one["name"] for one in container["env"]} == {"HF_TOKEN", SIDE_HOST, SIDE}
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(pools, "Service")}
    assert services["fleet-prefill"]["clusterIP"] == services["fleet-decode"]["clusterIP"] == "None"
    (proxy,) = (one for one in of_kind(pools, "Deployment") if one["metadata"]["name"] == "proxy")
    (container,) = proxy["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    assert env == {
        "PREFILL": "fleet-prefill:8000",
        "DECODE": "fleet-decode:8000",
        "PREFILL_ROUTER": "least_outstanding",
        "DECODE_ROUTER": "least_outstanding",
    }
    (script,) = of_kind(pools, "ConfigMap")
    compile(script["data"]["proxy.py"], "proxy.py", "exec")


def test_the_files_of_replicas_with_roles_are_valid() -> None:
    pools = apart()
    validate = pytest.importorskip(
        "kubernetes_validate", reason="the schemas of Kubernetes are in kubernetes-validate"
    )
    for document in documents(pools):
        validate.validate(document, "1.37", strict=True)
    compose = pytest.importorskip("compose_spec", reason="the Compose specification is in compose-spec")
    text = compose_text(pools, "least_outstanding")
    compose.PyCompose.from_yaml(text).to_spec()
    services = yaml.safe_load(text)["services"]
    assert set(services) == {"fleet-prefill-0", "fleet-decode-0", "fleet-decode-1", "gateway"}
    assert services["gateway"]["environment"]["DECODE"] == "fleet-decode-0:8000,fleet-decode-1:8000"
    assert services["fleet-decode-1"]["environment"][SIDE_HOST] == "fleet-decode-1"


def test_commands_and_proxy_of_replicas_with_roles_are_written_and_what_they_cannot_do_is_said(
    tmp_path: Path,
) -> None:
    written = {path.name for path in write_deployment(apart(), "round_robin", tmp_path)}
    assert written == {"kubernetes.yaml", "compose.yaml", "commands.sh", "proxy.py"}
    text = (tmp_path / "deploy" / "commands.sh").read_text()
    assert text.count("NixlConnector") == 2
    assert "deploy/proxy.py" in deployed_text(apart(), "round_robin")
    by_layer = apart(KvTransfer(overlap="layers", drafter_kv="rebuilt"))
    said = deployed_text(by_layer, "round_robin")
    assert "overlap layers" in said and "drafter_kv rebuilt" in said and "No Kubernetes manifest" in said
