"""What deployment files start: equal replicas, the image of their engine, and what cannot be started."""

from __future__ import annotations

from dataclasses import dataclass

from specfleet.experiments.plan.deploy.handing import transfer_words, unsaid_of
from specfleet.experiments.plan.flags import server_command, unsaid
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.deployment import KvTransfer
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.scaling import Autoscale
from specfleet.hardware.memory import GIB

PORTS = {"vllm": 8000, "sglang": 30000}
"""Where an engine listens if nothing is said, by whose rules decide."""
ROOM = 1.2
"""Times the checkpoint that a cache of it is given: downloads are written beside what they replace."""
SHM_GIB_PER_GPU = 2
"""Of /dev/shm, through which processes of an engine and NCCL pass tensors."""


@dataclass(frozen=True)
class DeployedPool:
    """Equal replicas of a deployment.

    Attributes:
        name: of the pool, also of what is made for it: `[a-z0-9-]`.
        config: the engine, every default filled in.
        replicas: bought, spares included; of one that scales those to start with.
        classes: of the traffic that belong here; empty: all.
        autoscale: how many there are as the load changes; None: always so many.
        role: `prefill` or `decode`, where KV is handed over; else "".
        transfer: how KV is handed over; None without a role.
    """

    name: str
    config: Experiment
    replicas: int
    classes: tuple[str, ...] = ()
    autoscale: Autoscale | None = None
    role: str = ""
    transfer: KvTransfer | None = None

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        serve = self.config.serve
        return serve.tensor_parallel_size * serve.data_parallel_size * serve.pipeline_parallel_size

    @property
    def gpu(self) -> str:
        """Its GPU, as the catalogue has it."""
        return lookups.accelerator(self.config.serve.gpu).name

    @property
    def rules(self) -> str:
        """Whose engine it is: `vllm`, `sglang`, `trtllm`."""
        return lookups.engine(self.config.serve.engine).scheduler

    @property
    def image(self) -> str:
        """The container image of the engine that was simulated; "" where its profile names none."""
        return lookups.engine(self.config.serve.engine).image

    @property
    def image_source(self) -> str:
        """Where the image's release is from."""
        return lookups.engine(self.config.serve.engine).source.get("image", "")

    @property
    def port(self) -> int:
        """Where a replica listens."""
        return PORTS[self.rules]

    @property
    def words(self) -> list[str]:
        """The command of one replica in its container."""
        words = server_command(self.config)
        if self.rules == "sglang":
            words = ["python3", *words[1:], "--host", "0.0.0.0"]
        return [*words, *(transfer_words() if self.role else []), "--port", str(self.port)]

    @property
    def cache_gib(self) -> int:
        """GiB that the checkpoints of model and drafter take, with room for a download."""
        serve = self.config.serve
        stored = lookups.model(serve.model).checkpoint_bytes
        speculative = serve.speculative_config
        if speculative is not None and speculative.model is not None and speculative.method != "ngram":
            model = lookups.drafter(speculative.model).model
            stored += 0 if model is None else model.checkpoint_bytes
        return max(round(ROOM * stored / GIB), 1) + 1

    @property
    def shm_gib(self) -> int:
        """GiB of /dev/shm of a replica."""
        return SHM_GIB_PER_GPU * self.gpus

    def missing(self) -> list[str]:
        """Returns why no file can start what was simulated, a clause each; empty if one can."""
        found = [f"it cannot say {clause}" for clause in unsaid(self.config)]
        if self.transfer is not None:
            found += [f"it cannot say {clause}" for clause in unsaid_of(self.transfer)]
        if self.rules not in PORTS:
            found.append(f"{self.rules}-serve reads a file of options, which these files do not carry")
        elif not self.image:
            found.append(f"the profile of {self.config.serve.engine} names no container image")
        return found
