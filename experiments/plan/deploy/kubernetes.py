"""A Kubernetes manifest: for each pool a claim for its model cache, a Deployment and a Service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml

from specfleet.experiments.plan.deploy.handing import (
    PROXY,
    PROXY_FILE,
    PROXY_PORT,
    SIDE,
    SIDE_HOST,
    SIDE_PORT,
    proxy_env,
)
from specfleet.experiments.plan.deploy.pool import DeployedPool
from specfleet.experiments.schema.blocks.scaling import Autoscale

CACHE = "/root/.cache/huggingface"
"""Where both images keep what they download."""
SECRET = "hf-token"
"""The secret with the Hugging Face token, under the key `token`."""
PRODUCTS = {
    "a100-80gb": "NVIDIA-A100-SXM4-80GB",
    "b200": "NVIDIA-B200",
    "h100-nvl": "NVIDIA-H100-NVL",
    "h100-pcie": "NVIDIA-H100-PCIe",
    "h100-sxm": "NVIDIA-H100-80GB-HBM3",
    "h200": "NVIDIA-H200",
    "l40s": "NVIDIA-L40S",
}
"""GPU of the catalogue -> `nvidia.com/gpu.product`, the label of its nodes by NVIDIA's feature discovery."""
START_S = 1800
"""How long a replica may take to download, load and compile before it is started anew."""
EVERY_S = 10
SCALED_ON = {"concurrency": "vllm:num_requests_running", "queue": "vllm:num_requests_waiting"}
"""What an autoscaler looks at -> vLLM's metric of it."""


def kubernetes_text(pools: Sequence[DeployedPool], router: str) -> str:
    """Returns the manifest.

    Args:
        pools: of the deployment, all of which can be started.
        router: that was simulated, by name.
    """
    head = [f"# {line}" for line in _head(pools, router)]
    documents = [document for pool in pools for document in _documents(pool)]
    if any(pool.role for pool in pools):
        documents += _proxy(pools, router)
    return "\n".join(head) + "\n" + "".join(f"---\n{plain_yaml(document)}" for document in documents)


class Plain(yaml.SafeDumper):
    """YAML without anchors: what is the same in two places is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        """Nothing is referred to."""
        return True


def plain_yaml(content: object) -> str:
    """Returns YAML text in the order given, a long line unbroken."""
    return yaml.dump(content, Dumper=Plain, sort_keys=False, width=1000)


def _head(pools: Sequence[DeployedPool], router: str) -> Iterator[str]:
    """What somebody must know before applying it."""
    yield "Written by specfleet plan. Before it is applied:"
    yield f"  kubectl create secret generic {SECRET} --from-literal=token=YOUR_HUGGING_FACE_TOKEN"
    yield "Without that secret the pods stay in CreateContainerConfigError. The claims ask for ReadWriteMany;"
    yield "where no storage class offers it the pods stay Pending: name one in storageClassName."
    for pool in pools:
        yield f"Image of {pool.name}: {pool.image} ({pool.image_source})."
        if _product(pool) is None:
            yield f"The label of nodes with {pool.gpu} is not known: give {pool.name} a nodeSelector, or any"
            yield "GPU will do."
    yield from _routing(pools, router)
    for pool in pools:
        if pool.autoscale is not None:
            yield from _scaling(pool, pool.autoscale)


def _routing(pools: Sequence[DeployedPool], router: str) -> Iterator[str]:
    if sum(pool.replicas for pool in pools) == 1:
        return
    if any(pool.role for pool in pools):
        yield "Requests go to the Service proxy, which sends each to a prefill and then to a decode pod, as"
        yield f"simulated ({router} among the first; others than least_outstanding in turn). KV goes from"
        yield "pod to pod by UCX: give pods the RDMA devices of their nodes, or it goes by TCP, and longer."
        return
    yield f"Router: {router} was simulated. A Service picks a pod at random for each connection, not for each"
    yield f"request, and knows no load: for {router} put a gateway before the Service that does it."
    for pool in pools:
        if pool.classes:
            yield f"Service {pool.name} is for {', '.join(pool.classes)}: client or gateway chooses it."


def _follows(pool: DeployedPool) -> bool:
    """Whether a HorizontalPodAutoscaler can do what was simulated."""
    return pool.autoscale is not None and pool.autoscale.metric in SCALED_ON and pool.rules == "vllm"


def _scaling(pool: DeployedPool, scaled: Autoscale) -> Iterator[str]:
    if _follows(pool):
        metric = SCALED_ON[scaled.metric]
        yield f"The autoscaler of {pool.name} needs {metric} as a metric of pods, as prometheus-adapter"
        yield f"gives it ({_metric(scaled)}); until then the {pool.replicas} for the busiest hour stay."
    else:
        yield f"{pool.name} was simulated with replicas that follow {scaled.metric}. It has no"
        yield "HorizontalPodAutoscaler here, as its pods have no such metric."


def _documents(pool: DeployedPool) -> Iterator[dict[str, object]]:
    yield _claim(pool)
    yield _deployment(pool)
    yield _service(pool)
    if pool.autoscale is not None and _follows(pool):
        yield _autoscaler(pool, pool.autoscale)


def _meta(pool: DeployedPool, suffix: str = "") -> dict[str, object]:
    return {"name": f"{pool.name}{suffix}", "labels": {"app": pool.name}}


def _claim(pool: DeployedPool) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _meta(pool, "-models"),
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": f"{pool.cache_gib}Gi"}},
        },
    }


def _deployment(pool: DeployedPool) -> dict[str, object]:
    spec: dict[str, object] = {"replicas": pool.replicas}
    labels = {"matchLabels": {"app": pool.name}}
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    template = {"metadata": {"labels": {"app": pool.name}}, "spec": _pod(pool)}
    spec |= {"selector": labels, "strategy": rolling, "progressDeadlineSeconds": START_S + 600}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(pool),
        "spec": {**spec, "template": template},
    }


def _product(pool: DeployedPool) -> str | None:
    return PRODUCTS.get(pool.gpu)


def _pod(pool: DeployedPool) -> dict[str, object]:
    product = _product(pool)
    chosen: dict[str, object] = {"nodeSelector": {"nvidia.com/gpu.product": product}} if product else {}
    return {
        **chosen,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "terminationGracePeriodSeconds": 300,
        "containers": [_container(pool)],
        "volumes": [
            {"name": "models", "persistentVolumeClaim": {"claimName": f"{pool.name}-models"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{pool.shm_gib}Gi"}},
        ],
    }


def _container(pool: DeployedPool) -> dict[str, object]:
    words = pool.words
    first = 2 if pool.rules == "vllm" else 3
    health = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": EVERY_S, "timeoutSeconds": 5}
    return {
        "name": "engine",
        "image": pool.image,
        "command": words[:first],
        "args": words[first:],
        "env": [
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "token"}}},
            *(_side_channel() if pool.role else []),
        ],
        "ports": [{"name": "http", "containerPort": pool.port}],
        "resources": {"limits": {"nvidia.com/gpu": pool.gpus}, "requests": {"nvidia.com/gpu": pool.gpus}},
        "startupProbe": {**health, "failureThreshold": START_S // EVERY_S},
        "readinessProbe": {**health, "failureThreshold": 3},
        "livenessProbe": {**health, "failureThreshold": 6},
        "volumeMounts": [
            {"name": "models", "mountPath": CACHE},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def _service(pool: DeployedPool) -> dict[str, object]:
    ports = [{"name": "http", "port": pool.port, "targetPort": "http"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(pool),
        "spec": {
            **({"clusterIP": "None"} if pool.role else {}),
            "selector": {"app": pool.name},
            "ports": ports,
        },
    }


def _side_channel() -> list[dict[str, object]]:
    """Where others learn how to reach the KV of a pod."""
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    return [{"name": SIDE_HOST, "valueFrom": address}, {"name": SIDE, "value": str(SIDE_PORT)}]


def _proxy(pools: Sequence[DeployedPool], router: str) -> Iterator[dict[str, object]]:
    """The proxy before pools with roles, which asks for the addresses of their pods by name."""
    name = "proxy"
    meta = {"name": name, "labels": {"app": name}}
    first, other = (next(pool for pool in pools if pool.role == role) for role in ("prefill", "decode"))
    assert other.transfer is not None
    hosts = [[f"{pool.name}:{pool.port}"] for pool in (first, other)]
    env = proxy_env(hosts[0], hosts[1], (router, other.transfer.router))
    health = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": EVERY_S}
    container = {
        "name": name,
        "image": first.image,
        "command": ["python3", f"/proxy/{PROXY_FILE}"],
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "ports": [{"name": "http", "containerPort": PROXY_PORT}],
        "readinessProbe": health,
        "volumeMounts": [{"name": name, "mountPath": "/proxy"}],
    }
    pod = {"containers": [container], "volumes": [{"name": name, "configMap": {"name": name}}]}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {PROXY_FILE: PROXY}}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    spec: dict[str, object] = {
        "replicas": 1,
        "selector": {"matchLabels": {"app": name}},
        "template": template,
    }
    yield {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
    ports = [{"name": "http", "port": PROXY_PORT, "targetPort": "http"}]
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {"selector": {"app": name}, "ports": ports},
    }


def _metric(scaled: Autoscale) -> str:
    return SCALED_ON[scaled.metric].replace(":", "_")


def _autoscaler(pool: DeployedPool, scaled: Autoscale) -> dict[str, object]:
    target = {"type": "AverageValue", "averageValue": f"{round(1000 * scaled.target)}m"}
    metric = {"type": "Pods", "pods": {"metric": {"name": _metric(scaled)}, "target": target}}
    behaviour: dict[str, object] = {
        "scaleDown": {"stabilizationWindowSeconds": min(round(scaled.down_after_s), 3600)}
    }
    if scaled.up_most is not None:
        policy = {"type": "Pods", "value": scaled.up_most, "periodSeconds": max(round(scaled.every_s), 1)}
        behaviour["scaleUp"] = {"policies": [policy]}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _meta(pool),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": pool.name},
            "minReplicas": scaled.min,
            "maxReplicas": scaled.max,
            "metrics": [metric],
            "behavior": behaviour,
        },
    }
