"""A parsed `config.json` as a model: its layers one by one, then what is alike added up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specfleet.hardware.configs.families import FAMILIES, Family, family_name
from specfleet.hardware.configs.feeding import all_feed_forwards
from specfleet.hardware.configs.keys import Config, ConfigError, count, first, listed
from specfleet.hardware.configs.mixing import all_mixers
from specfleet.hardware.configs.storage import Storage, storage_of
from specfleet.hardware.configs.vision import tower_parameters
from specfleet.hardware.layers.attention import CompressedAttention, GroupedAttention, LatentAttention
from specfleet.hardware.layers.feedforward import DenseMlp, ExpertMlp
from specfleet.hardware.layers.formats import default_format
from specfleet.hardware.layers.parts import Part
from specfleet.hardware.layers.positions import PLAIN_ROPE, Rope
from specfleet.hardware.layers.stack import LayerRun, alike, same
from specfleet.hardware.model import MOST_LAYERS, ModelSpec

TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where a model that also sees keeps its language model."""

NOT_MODELLED = (
    *(
        "rwkv",
        "recurrent",
        "lru_",
        "cross_attention",
        "is_encoder_decoder",
        "attn_layer_period",
        "expert_layer_",
    ),
)
"""Beginnings of keys that announce layers without a cost model."""

MTP_KEYS = (
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_modules",
    "num_mtp_layers",
    "mtp_layers",
)
LARGEST_GRAPHS = {"gpt_oss": 1024}
"""Tokens of the largest CUDA graph, where vLLM's own model code sets it."""
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def model_of(config: Config, beside: Config | None, *, name: str, source: str) -> ModelSpec:
    """The model of a parsed `config.json` and of the `hf_quant_config.json` beside it.

    Raises ConfigError (a ValueError) saying what is missing or not modelled.
    """
    written = _text(config)
    key, family = _family(config, written)
    text = {**family.defaults, **{item: value for item, value in written.items() if value is not None}}
    layers = _layers(text)
    hidden = count(text, "hidden_size", least=1)
    stored = storage_of(config, beside)
    mixing, feeding = all_mixers(text, key, family, layers), all_feed_forwards(text, key, family, layers)
    shared = count(text, "num_kv_shared_layers", 0)
    run = [
        _stored(LayerRun(1, mixing[layer], feeding[layer]), layer, hidden, stored, layer >= layers - shared)
        for layer in range(layers)
    ]
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    plain: dict[str, Any] = {
        "name": name,
        "hf_id": "",
        "num_layers": layers,
        "hidden_size": hidden,
        "vocab_size": count(text, "vocab_size"),
        "tie_word_embeddings": bool(family.tied if tied is None else tied),
        "max_position_embeddings": count(text, first(text, *LENGTHS)),
        "source": source,
        "vision_parameters": tower_parameters(config, key, hidden),
        "mtp_layers": _mtp_layers(text, config),
        "fp8_scales_by_block": stored.fp8_by_block,
        "checkpoint_kv_cache_dtype": stored.kv_cache_dtype,
        "extra_parameters": _beside_layers(text, key, layers, hidden),
        "cudagraph_max_tokens": LARGEST_GRAPHS.get(key, 0),
        "rope": rope_of(config, text, key),
    }
    return _model(plain, alike(run), text)


def _layers(text: Config) -> int:
    """How many layers: as counted in the file, else as long as its list of them is."""
    key = first(text, *LAYER_COUNTS)
    if text.get(key) is None and (
        named := text.get("hybrid_override_pattern") or listed(text, "layers_block_type")
    ):
        return len(named)
    return count(text, key, least=1, most=MOST_LAYERS)


def _text(config: Config) -> Config:
    """Keys of the language model, those of the whole model behind them."""
    for key in TEXT_PARTS:
        if isinstance(config.get(key), dict):
            return _text({**{k: v for k, v in config.items() if k != key}, **config[key]})
    return config


def _family(config: Config, text: Config) -> tuple[str, Family]:
    """The family of the language model; ConfigError where its layers have no cost model."""
    architectures = listed(config, "architectures")
    key = family_name(text.get("model_type"), [*architectures, *listed(text, "architectures")])
    strange = sorted(item for item in text if item.startswith(NOT_MODELLED) and text[item])
    strange = [item for item in strange if item not in ("add_cross_attention", "cross_attention_hidden_size")]
    if key is not None and not strange:
        return key, FAMILIES[key]
    named = (architectures or ["(no architecture named)"])[0]
    kinds = sorted(set(map(str, listed(text, "layer_types"))) - {"full_attention", "sliding_attention"})
    missing = [*strange, *(f"layers of type {kind}" for kind in kinds)]
    why = f"; there is no cost model for {', '.join(missing)}" if missing else ""
    raise ConfigError(
        f"architecture {named!r} is not modelled{why}. Known: {', '.join(sorted(FAMILIES))}. "
        "A plain transformer under another name can be given inline (num_layers, hidden_size, ...)"
    )


def _stored(run: LayerRun, layer: int, hidden: int, stored: Storage, shares: bool) -> LayerRun:
    """One layer with the format of each part; `shares`: it reads another layer's KV."""
    if shares:
        mixers = tuple(
            replace(m, shares_cache=True) if isinstance(m, GroupedAttention) else m for m in run.mixers
        )
        run = run._replace(mixers=mixers)
    if not stored.groups:
        return run
    formats = [(part.role, stored.of(layer, part.role, _named(part))) for part in run.parts(hidden, 1)]
    if run.experts:
        formats.append(("experts", stored.of(layer, "experts", run.experts.expert_modules)))
    return run._replace(formats=tuple(formats))


def _named(part: Part) -> tuple[str, ...]:
    """A part's module names; hybrids call every mixer `mixer`."""
    return (*part.modules, *(name.replace("self_attn.", "mixer.") for name in part.modules))


def _model(plain: dict[str, Any], stack: tuple[LayerRun, ...], text: Config) -> ModelSpec:
    """The record: plain fields alone where they say everything, with the stack where they do not."""
    found = [kind for run in stack for _, kind in run.formats]
    whole = max(sorted(set(found)), key=found.count) if found else None
    for stored in (None, "fp8", "mxfp4", whole):
        if all(kind == default_format(stored, role) for run in stack for role, kind in run.formats):
            bare = alike(run._replace(formats=()) for run in stack)
            model = ModelSpec(**plain, **_summary(bare, text), checkpoint_quantization=stored)
            return model if same(model.runs, bare) else replace(model, stack=bare)
    experts = [kind for run in stack for role, kind in run.formats if role == "experts"]
    main = experts[0] if experts else whole
    return ModelSpec(**plain, **_summary(stack, text), checkpoint_quantization=main, stack=stack)


def _summary(stack: tuple[LayerRun, ...], text: Config) -> dict[str, Any]:
    """The plain fields that sum a stack up: its first attention with all heads, its widest MLPs."""
    grouped = [m for run in stack for m in run.mixers if isinstance(m, GroupedAttention)]
    latent = [m for run in stack for m in run.mixers if isinstance(m, LatentAttention)]
    other = [m for run in stack for m in run.mixers if isinstance(m, CompressedAttention)]
    dense = [run.feed_forward for run in stack if isinstance(run.feed_forward, DenseMlp)]
    experts = [run.feed_forward for run in stack if isinstance(run.feed_forward, ExpertMlp)]
    fields: dict[str, Any] = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 1}
    if grouped:
        first_full = min(grouped, key=lambda m: m.window > 0)
        fields = {"num_heads": first_full.heads, "num_kv_heads": first_full.kv_heads,
                  "head_dim": first_full.head_dim}  # fmt: skip
        windows = [m for m in grouped if m.window]
        fields["sliding_window"] = windows[0].window if windows else 0
        fields["num_windowed_layers"] = sum(
            run.layers
            for run in stack
            if any(isinstance(m, GroupedAttention) and m.window for m in run.mixers)
        )
    elif latent:
        one = latent[0]
        fields = {"num_heads": one.heads, "num_kv_heads": one.heads, "head_dim": one.head_dim,
                  "kv_lora_rank": one.kv_rank, "q_lora_rank": one.q_rank, "qk_nope_head_dim": one.nope_dim,
                  "qk_rope_head_dim": one.rope_dim, "v_head_dim": one.v_head_dim}  # fmt: skip
    elif other:
        fields = {"num_heads": other[0].heads, "num_kv_heads": 1, "head_dim": other[0].head_dim}
    width = max((kind.width for kind in dense), default=0)
    said = count(text, "intermediate_size", 0) if not isinstance(text.get("intermediate_size"), list) else 0
    fields["intermediate_size"] = width or said or max((kind.width for kind in experts), default=1)
    if experts:
        kind = experts[0]
        fields |= {"num_experts": kind.experts, "num_experts_per_tok": kind.per_token,
                   "moe_intermediate_size": kind.width, "shared_expert_intermediate_size": kind.shared_width,
                   "num_dense_layers": sum(run.layers for run in stack if not run.experts),
                   "router_bias": kind.router_bias}  # fmt: skip
    return fields


def _mtp_layers(text: Config, config: Config) -> int:
    """Layers for multi-token prediction that a file names."""
    key = next((item for item in MTP_KEYS if text.get(item) or config.get(item)), None)
    return count({**config, **text}, key) if key else 0


def _beside_layers(text: Config, key: str, layers: int, hidden: int) -> int:
    """Weights that belong to no layer kind: embeddings a layer (Gemma 3n, 4), streams (DeepSeek-V4)."""
    extra = 0
    per_layer = count(text, "hidden_size_per_layer_input", 0) if key in ("gemma3n", "gemma4") else 0
    if per_layer:
        table = count(text, "vocab_size_per_layer_input", count(text, "vocab_size")) * layers * per_layer
        extra += table + hidden * layers * per_layer + layers * 2 * per_layer * hidden
    if key == "gemma3n":
        inputs, rank = count(text, "altup_num_inputs", 4), count(text, "laurel_rank", 64)
        extra += 2 * (inputs - 1) * hidden**2 + layers * (2 * rank + inputs + 1) * hidden
    if streams := count(text, "hc_mult", 0):
        extra += layers * 2 * (streams * (2 + streams)) * streams * hidden
    return extra


def rope_of(config: Config, text: Config, key: str) -> Rope:
    """How positions are stretched, in the words of the file: YaRN, linear, dynamic; plain otherwise."""
    said = text.get("rope_parameters") or text.get("rope_scaling")
    if not isinstance(said, dict) or key == "gemma3":
        return PLAIN_ROPE
    if any(isinstance(value, dict) for value in said.values()):
        said = next((v for k, v in said.items() if isinstance(v, dict) and "full" in str(k)), {})
    kind = str(said.get("rope_type") or said.get("type") or "default")
    factor, original = said.get("factor") or 1.0, said.get("original_max_position_embeddings") or 0
    if kind in ("default", "mrope") or not isinstance(factor, int | float) or isinstance(factor, bool):
        return PLAIN_ROPE
    original = count({"original_max_position_embeddings": original}, "original_max_position_embeddings")
    return Rope(kind, float(factor), original)
