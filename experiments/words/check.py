"""What `specfleet check` prints: of a sweep, what differs between its points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil

from specfleet.experiments.load.rules.failures import is_replaced
from specfleet.experiments.load.rules.patience import patience_blocks
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.built import build, expected_lengths
from specfleet.experiments.point.coming import start_s
from specfleet.experiments.point.handover import PROXY_MS, drafter_keeps_kv, kv_bytes, transfer_of
from specfleet.experiments.run.check import POOL, CheckedFile, CheckedPoint
from specfleet.experiments.schema.blocks.deployment import Deployment
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.failing import Failures, PoolFailures
from specfleet.experiments.schema.blocks.scaling import Spot
from specfleet.experiments.schema.blocks.sessions import Pause
from specfleet.experiments.schema.pools import pool_experiments
from specfleet.experiments.words.values import counted, named, text
from specfleet.hardware.memory import GIB

TOLD = 2048
"""Prompt tokens of which it is said what their KV takes."""
MANY = 12
"""Values of an axis, or groups of points, that are named; of more, how many."""


def check_text(found: CheckedFile) -> str:
    """Returns the axes, the requests, and the memory of one GPU: whole once, then what is not the same."""
    replications = found.loaded.experiment.replications
    points = len({point.point.id for point in found.points})
    size = f"{counted(points, 'point')} x {counted(replications, 'replication')}"
    parts = [f"{found.name}: {size}"]
    parts += [f"note: {notice}" for notice in found.loaded.notices]
    ways = routing_lines(found.loaded.experiment)
    return "\n".join([*parts, "", *_points(found.points), *ways, "", *_memory(found.points)])


def routing_lines(experiment: Experiment) -> Iterator[str]:
    """Where requests go, and what holds them, where that is more than the name of a router."""
    deployment, routing = experiment.deployment, experiment.deployment.routing
    ways = [f"{name} to {pool}" for name, pool in (routing.by_class or {}).items()]
    if (rule := routing.by_acceptance) is not None:
        for name, length in expected_lengths(expand(experiment)[0].config, rule.to).items():
            pool = rule.to if length >= rule.at_least else routing.otherwise
            ways.append(f"{name or 'all'} ({length:.2f} tokens a round at {rule.to}) to {pool}")
    if routing.otherwise is not None:
        ways.append(f"others to {routing.otherwise}")
    for name, spill in (routing.spill or {}).items():
        ways.append(f"past {name} to {spill.to} from {spill.above:g} outstanding a replica on")
    if routing.refresh_ms:
        ways.append(f"replicas seen as they were up to {routing.refresh_ms:g} ms ago")
    if ways:
        yield f"  router: {', '.join(ways)}; then {routing.then}"
    yield from handover_lines(experiment)
    yield from scaling_lines(experiment)
    if deployment.failures is not None:
        yield f"  failures: {failing_lines(deployment, deployment.failures)}"
    yield from patience_lines(experiment)
    gateway = deployment.gateway
    if gateway is None:
        return
    said = [f"at most {gateway.max_outstanding} outstanding a replica"] if gateway.max_outstanding else []
    said += [f"{gateway.queue} held"] if gateway.queue is not None else []
    said += [f"for {gateway.timeout_ms:g} ms"] if gateway.timeout_ms is not None else []
    if gateway.admit_ttft_ms is not None:
        said.append(f"nobody predicted to wait more than {gateway.admit_ttft_ms:g} ms for a first token")
    if gateway.retries:
        said.append(
            f"sent again {counted(gateway.retries, 'time')} after {gateway.backoff_ms:g} ms and longer"
        )
    yield f"  gateway: {', '.join(said)}"


def patience_lines(experiment: Experiment) -> Iterator[str]:
    """How long clients wait, and what they do then."""
    for key, block in patience_blocks(experiment).items():
        limits = (("a first token", block.ttft_timeout_s), ("the whole answer", block.timeout_s))
        waits = [f"{pause_text(pause)} for {what}" for what, pause in limits if pause is not None]
        again = "then give up"
        if block.retries:
            after = 1.0 if block.backoff_s is None else block.backoff_s
            again = f"then send again, {counted(block.retries, 'time')} at most, after {after:g} s and longer"
        where = key.removeprefix("workload.").removesuffix("patience").strip(".")
        yield f"  clients{f' ({where})' if where else ''}: wait {' and '.join(waits)}, {again}"


def pause_text(pause: Pause) -> str:
    """A distribution of seconds in a few words."""
    if pause.fixed is not None:
        return f"{pause.fixed:g} s"
    if pause.exponential is not None:
        return f"{pause.exponential:g} s on average (exponential)"
    if pause.uniform is not None:
        return f"{pause.uniform.low:g} to {pause.uniform.high:g} s"
    if pause.lognormal is not None:
        return f"{pause.lognormal.median:g} s in the median (lognormal)"
    return "seconds of a table"


def handover_lines(experiment: Experiment) -> Iterator[str]:
    """How KV goes from the pool that computes prompts to the one that decodes, and what that takes alone."""
    config = next((one.config for one in expand(experiment) if transfer_of(one.config) is not None), None)
    if config is None:
        return
    asked, pools = transfer_of(config), config.deployment.pools or {}
    assert asked is not None
    names = sorted(pools, key=lambda name: pools[name].role == "decode")
    block, more = kv_bytes(config)
    built = {pool.name: pool for pool in build(config).pools}
    rate = min(pool.bytes_per_s for pool in built.values())
    whole = ceil(TOLD / built[names[1]].engine.block_size) * block + TOLD * more
    how = {
        "after": "when a prompt is computed",
        "chunks": "each piece of a prompt when its step has ended",
        "layers": "layer by layer, while later ones are computed",
    }
    serve = pool_experiments(config)[names[1]].serve
    drafts = f"; the drafter's KV is {asked.drafter_kv}" if drafter_keeps_kv(serve) else ""
    if asked.first_rounds is not None and drafts:
        drafts += f": no drafts in the first {counted(asked.first_rounds, 'round')}"
    yield f"  KV from {names[0]} to {names[1]}: {how[asked.overlap]}; then {asked.router}{drafts}"
    proxy = f", {asked.proxy_ms or PROXY_MS:g} ms at the proxy" if asked.overlap == "after" else ""
    assumed = [] if asked.proxy_ms is not None or asked.overlap != "after" else ["the proxy"]
    assumed += [] if "setup_ms" in asked.model_fields_set else ["the set-up"]
    said = f" (assumed: {' and '.join(assumed)})" if assumed else ""
    yield (
        f"  {TOLD:,} tokens are {whole / 1e9:.3f} GB: {1e3 * whole / rate:.1f} ms alone on a link of "
        f"{rate / 1e9:g} GB/s, after {asked.setup_ms:g} ms of set-up{proxy}{said}"
    )


def scaling_lines(experiment: Experiment) -> Iterator[str]:
    """How many replicas of each pool there are where they come and go, which are on spot instances, and when
    a new one serves."""
    for name, config in pool_experiments(expand(experiment)[0].config).items():
        asked, spot = config.deployment.autoscale, config.deployment.spot
        of = f"pool {name}: " if name else ""
        if asked is not None:
            target = f"{asked.target:g}{' ms' if asked.metric == 'ttft' else ''}"
            bounds = f"{asked.min} to {counted(asked.max, 'replica')}"
            yield (
                f"  {of}autoscale: {bounds}, {asked.metric} at {target}, "
                f"decided every {asked.every_s:g} s, fewer after {asked.down_after_s:g} s"
            )
        if spot is not None:
            yield f"  {of}spot: {spot_said(spot)}"
        if asked is not None or spot is not None:
            given = (asked or spot).load_s is not None  # type: ignore[union-attr]
            provision, load = start_s(config)
            known = "as given" if given else "assumed: weights, and the engine's start"
            yield f"  {of}a new replica serves {provision:g} s + {load:.0f} s after its order ({known})"


def spot_said(spot: Spot) -> str:
    """Which replicas are on spot instances, at what price, and when those are taken."""
    which = f"all but {counted(spot.on_demand, 'replica')}" if spot.on_demand else "all replicas"
    if spot.price_factor is not None:
        price = f"{spot.price_factor:g} of the price on demand"
    else:
        price = f"${spot.usd_per_gpu_hour:g} a GPU-hour"
    said = [f"{which}, at {price}"]
    if spot.mtti_s is not None:
        said.append(f"each taken after {spot.mtti_s:g} s on average")
    said += [f"{one.replicas} taken at {one.at_s:g} s" for one in spot.at]
    return "; ".join([*said, f"{spot.notice_s:g} s after a notice"])


def failing_lines(deployment: Deployment, failures: Failures) -> str:
    """Which replicas fail when, and what becomes of their requests."""
    pools, said = list(deployment.pools or ()), []
    for one in failures.at:
        for_s = failures.repair_s if one.for_s is None else one.for_s
        kind = one.kind or failures.kind
        how = {
            "dies": "dies",
            "hangs": "hangs",
            "slow": f"is {one.factor or failures.factor or 1.0:g} times as slow",
        }
        until = "for good" if for_s is None else f"for {for_s:g} s"
        if kind != "slow" and is_replaced(deployment, one.pool):
            until = "until it is replaced"
        of = f" of {one.pool}" if one.pool else ""
        said.append(f"replica {one.replica}{of} {how[kind]} at {one.at_s:g} s {until}")
    own = failures.pools or {}
    each = {name: failures.of_pool(name) for name in own}
    if not pools or len(own) < len(pools):
        each[""] = failures.of_pool("")
    said += [_by_chance(name, how) for name, how in each.items() if how.mtbf_s is not None]
    if failures.detect_s is not None:
        said.append(f"found after {failures.detect_s:g} s")
    retry = failures.retry
    times = f"sent anew {counted(retry.most, 'time')} at most" if retry.most else "never sent anew"
    kept = ", with what was written" if retry.keep_partial and retry.most else ""
    return "; ".join([*said, f"lost requests are {times}{kept}"])


def _by_chance(pool: str, one: PoolFailures) -> str:
    kinds = {"dies": "dies", "hangs": "hangs", "slow": "is slow"}
    until = "" if one.repair_s is None else f", for {one.repair_s:g} s"
    which = f"each of {pool}" if pool else "each"
    return f"{which} {kinds[one.kind or 'dies']} after {one.mtbf_s:g} s on average{until}"


def _points(points: Sequence[CheckedPoint]) -> Iterator[str]:
    axes = points[0].point.axes
    if not axes:
        counted = _counted(_requests(points[0]))
        yield f"  {points[0].point.id}: {counted}{' requests' if points[0].at_most is None else ''}"
    for axis in axes:
        if axis == POOL:
            continue
        values = list({repr(p.point.axes[axis]): text(p.point.axes[axis]) for p in points}.values())
        yield f"  {axis}: {_listed(values)}"
    yield from dict.fromkeys(_pool(point) for point in points if POOL in point.point.axes)
    groups = by(points, _requests) if axes else []
    said = [f"{_counted(n)}{f' at {where}' if where else ''}" for n, where, _ in groups]
    if said:
        yield f"  requests: {_listed(said, '; ')}"
    for because, where, mine in by(points, lambda point: point.stepped_because):
        if because:
            at = f" at {where}" if where and len(mine) < len(points) else ""
            yield f"  will be stepped{at}, 2 to 25 times as long: {because}"


def _pool(point: CheckedPoint) -> str:
    """What a pool is made of."""
    serve, replicas = point.serve, point.point.config.deployment.replicas
    gpu = serve.gpu if isinstance(serve.gpu, str) else str(serve.gpu.get("base", "an inline GPU"))
    each = serve.tensor_parallel_size * serve.data_parallel_size * serve.pipeline_parallel_size
    speculative = serve.speculative_config
    drafts = f"{speculative.method}, K = {speculative.num_speculative_tokens}" if speculative else "no drafts"
    name = point.point.axes[POOL]
    return f"  pool {name}: {counted(replicas, 'replica')} of {each} x {gpu}, {drafts}"


def _requests(point: CheckedPoint) -> object:
    if point.at_most is not None:
        return f"as many as settle it, {point.at_most:,} at most (run.at_most)"
    return point.requests or "all"


def _counted(requests: object) -> str:
    return f"{requests:,}" if isinstance(requests, int) else str(requests)


def _listed(words: Sequence[str], between: str = ", ") -> str:
    more = f"{between}and {len(words) - MANY} more" if len(words) > MANY else ""
    return between.join(words[:MANY]) + more


def by(
    points: Sequence[CheckedPoint], value: Callable[[CheckedPoint], object]
) -> list[tuple[object, str, list[CheckedPoint]]]:
    """Returns each different value, where it holds in the axes that it depends on, and its points.

    Where all points have one value, nothing is said of where.
    """
    axes = list(points[0].point.axes)
    values = [value(point) for point in points]
    for axis in list(axes):
        others = [other for other in axes if other != axis]
        if _decide(points, values, others):
            axes = others
    found: dict[object, list[CheckedPoint]] = {}
    for point, its in zip(points, values, strict=True):
        found.setdefault(its, []).append(point)
    return [(its, _where(mine, axes), mine) for its, mine in found.items()]


def _decide(points: Sequence[CheckedPoint], values: Sequence[object], axes: Sequence[str]) -> bool:
    """Whether these axes decide the value."""
    seen: dict[tuple[str, ...], object] = {}
    keys = (tuple(repr(point.point.axes[axis]) for axis in axes) for point in points)
    return all(seen.setdefault(key, its) == its for key, its in zip(keys, values, strict=True))


def _where(points: Sequence[CheckedPoint], axes: Sequence[str]) -> str:
    """The values of these axes at some points, such as `K = 1, K = 3`."""
    if len(axes) == 1:
        values = list(dict.fromkeys(named(axes[0], point.point.axes[axes[0]]) for point in points))
        start = values[0].partition(" = ")[0] + " = "
        if len(values) > 1 and all(value.startswith(start) for value in values):
            values = [values[0], *(value.removeprefix(start) for value in values[1:])]
        return _listed(values)
    words = dict.fromkeys(", ".join(named(a, point.point.axes[a]) for a in axes) for point in points)
    return _listed(list(words), "; ")


def _memory(points: Sequence[CheckedPoint]) -> Iterator[str]:
    """The budgets that differ, each with what its pool means for the load."""
    first: tuple[str, ...] = ()
    groups = by(points, _budget_lines)
    for place, (lines, where, mine) in enumerate(groups[:MANY]):
        assert isinstance(lines, tuple)
        shown = [line for line in lines if line not in first]
        differ = ", what differs from the first" if first and len(shown) < len(lines) else ""
        if place:
            yield ""
        at = where if mine[0].point.axes else mine[0].point.id
        yield f"Memory of one GPU{f', {at}' if at else ''}{differ}:"
        yield from shown
        yield from _load_lines(mine)
        first = first or lines
    if len(groups) > MANY:
        yield f"\n(and {len(groups) - MANY} other budgets: specfleet check --json has them)"


def _budget_lines(point: CheckedPoint) -> tuple[str, ...]:
    """The budget line by line, after the build and the two limits that set its profiling peak."""
    serve = point.serve
    assumed = "" if point.engine_named else " (assumed: serve.engine is not given)"
    engine = (
        f"engine {serve.engine}{assumed}, "
        f"max_num_batched_tokens {serve.max_num_batched_tokens:,}, max_num_seqs {serve.max_num_seqs:,}"
    )
    if point.budget is None:
        return engine, str(point.refusal)
    return engine, *point.budget.render(serve.max_model_len).splitlines()


def _load_lines(points: Sequence[CheckedPoint]) -> Iterator[str]:
    """What the pool means for this workload: its own mean length, and the memory of its concurrency."""
    lines = (
        f"{point.budget.concurrency_line(point.mean_tokens)} (this workload's mean)"
        for point in points
        if point.budget is not None and point.mean_tokens is not None
    )
    means = list(dict.fromkeys(lines))
    yield from means[:MANY]
    if len(means) > MANY:
        yield f"(and {len(means) - MANY} other means)"
    by_length: dict[int, dict[int, CheckedPoint]] = {}
    for point in points:
        clients, length = point.point.config.workload.max_concurrency, point.serve.max_model_len
        if clients and length and point.least_utilization is not None:
            by_length.setdefault(length, {}).setdefault(clients, point)
    for length, by_clients in by_length.items():
        yield _utilization(length, dict(sorted(by_clients.items())))


def _utilization(length: int, by_clients: dict[int, CheckedPoint]) -> str:
    """The least utilization at the smallest and at the largest concurrency."""
    shares = {clients: point.least_utilization or 0.0 for clients, point in by_clients.items()}
    sizes = [
        clients * point.budget.request_bytes(length) / GIB
        for clients, point in by_clients.items()
        if point.budget is not None
    ]
    over = [clients for clients, share in shares.items() if share > 1.0]
    clients = list(shares)
    counts, size, share = f"{clients[0]:,}", f"{sizes[0]:.2f}", f"{shares[clients[0]]:.3f}"
    if len(clients) > 1:
        counts += f" to {clients[-1]:,}"
        size += f" to {sizes[-1]:.2f}"
        share += f" to {shares[clients[-1]]:.3f}"
    more = ", more than the GPU has" if over else ""
    if over and len(clients) > 1:
        more += f" from {over[0]:,} on"
    return (
        f"Least gpu_memory_utilization for {counts} requests of {length:,} tokens ({size} GiB): {share}{more}"
    )
