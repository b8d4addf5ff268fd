"""Fields of published `config.json` files that shape the model, with the parameters that are published, and sources.

A count is exact if it is that of the stored weights: `safetensors.total` of Hugging Face's interface, as public
repositories quote it, or a table of the authors. Parts for images do not count. Biases of routers, which no gradient
trains, and norms or gates that a Model does not know are in the exact counts and not in ours: that is the difference.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ppsim import Model

# FLOPs of a step of one sequence of 4,096 tokens, as Megatron-LM counts them.
MEGATRON_FLOPS: dict[str, float] = json.loads(
    (Path(__file__).parents[1] / "tests" / "references" / "megatron_flops.json").read_text(encoding="utf-8")
)["flops"]

MODULES, COPIES = "with prediction modules", "with prediction modules, and their copies of embedding and head"


class Published(NamedTuple):
    """A published model.

    Attributes
    ----------
    config : dict
        Fields of its `config.json`.
    parameters : int or float
        Its published count; an integer is exact.
    source : str
        Where the shape and the count can be read.
    active : float or None
        Parameters that a token visits, as published; None if it is dense, or if they were counted otherwise.
    counts : str
        What the count has beyond the model: "", `MODULES` or `COPIES`.
    rounded : float
        Half of the last digit of a rounded count; 0 if it is exact.
    """

    config: dict[str, Any]
    parameters: float
    source: str
    active: float | None = None
    counts: str = ""
    rounded: float = 0


def _config(model_type, layers, hidden, heads, ffn, vocabulary, **others):
    return {
        "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "intermediate_size": ffn, "vocab_size": vocabulary, "max_position_embeddings": 4096, **others,
    }  # fmt: skip


# Where shapes can be read: scripts of trainers, with the checkpoints that they load.
SLIME, PRIMUS = "THUDM/slime@624b824, scripts/models", "AMD-AGI/Primus@fd1eeab, primus/configs/models/megatron"
ZOO = "yanring/Megatron-MoE-ModelZoo@e865051, model_configs"
AIC = "ai-dynamo/aiconfigurator@095f58a, model_configs"
BRIDGE = "NVIDIA-NeMo/Megatron-Bridge@067f987, recipes/nemotronh"
KERAS = "keras-team/keras-hub, models/gemma3/gemma3_presets.py"
BY_COUNT = "the exact count"
_MAMBA = {"mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4}
_OF_52 = "M-M-M-M*-" + "M-M-M-M-M*-" * 3 + "M-M-M-M-M-"
_WORDS = {"M": "mamba", "E": "moe", "*": "attention"}
_QWEN35 = {"head_dim": 256, "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
           "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "mtp_num_hidden_layers": 1,
           "rope_parameters": {"rope_type": "default", "rope_theta": 10000000}}  # fmt: skip
_LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}

# Repository on huggingface.co: config, parameters, parameters that a token visits (None: dense, or counted otherwise).
CONFIGS = {
    "meta-llama/Llama-2-7b": Published(
        _config("llama", 32, 4096, 32, 11008, 32000),
        6_738_415_616, f"{PRIMUS}/llama2_7B",
    ),
    "meta-llama/Meta-Llama-3-8B": Published(
        _config("llama", 32, 4096, 32, 14336, 128256, num_key_value_heads=8),
        8_030_261_248, f"{PRIMUS}/llama3_8B",
    ),
    "meta-llama/Meta-Llama-3-70B": Published(
        _config("llama", 80, 8192, 64, 28672, 128256, num_key_value_heads=8),
        70_553_706_496, f"{PRIMUS}/llama3_70B",
    ),
    "meta-llama/Llama-3.1-405B": Published(
        _config("llama", 126, 16384, 128, 53248, 128256, num_key_value_heads=8),
        405_853_388_800, f"{PRIMUS}/llama3.1_405B",
    ),
    "mistralai/Mistral-7B-v0.1": Published(
        _config("mistral", 32, 4096, 32, 14336, 32000, num_key_value_heads=8),
        7_241_732_096, BY_COUNT,
    ),
    "mistralai/Mixtral-8x7B-v0.1": Published(
        _config("mixtral", 32, 4096, 32, 14336, 32000, num_key_value_heads=8, num_local_experts=8,
                num_experts_per_tok=2),
        46_702_792_704, f"{PRIMUS}/mixtral_8x7B_v0.1", 12.9e9,
    ),
    "openai/gpt-oss-20b": Published(
        _config("gpt_oss", 24, 2880, 64, 2880, 201088, num_key_value_heads=8, head_dim=64, num_local_experts=32,
                num_experts_per_tok=4, sliding_window=128, attention_bias=True, swiglu_limit=7.0,
                layer_types=["sliding_attention", "full_attention"] * 12),
        20_914_757_184, f"{PRIMUS}/gpt_oss_20B",
    ),
    "openai/gpt-oss-120b": Published(
        _config("gpt_oss", 36, 2880, 64, 2880, 201088, num_key_value_heads=8, head_dim=64, num_local_experts=128,
                num_experts_per_tok=4, sliding_window=128, attention_bias=True, swiglu_limit=7.0),
        116_829_156_672, f"{PRIMUS}/gpt_oss_120B",
    ),
    "Qwen/Qwen2.5-0.5B": Published(
        _config("qwen2", 24, 896, 14, 4864, 151936, num_key_value_heads=2, tie_word_embeddings=True),
        494_032_768, f"{SLIME}/qwen2.5-0.5B",
    ),
    "Qwen/Qwen2.5-7B": Published(
        _config("qwen2", 28, 3584, 28, 18944, 152064, num_key_value_heads=4),
        7_615_616_512, f"{SLIME}/qwen2.5-7B",
    ),
    "Qwen/Qwen2.5-72B": Published(
        _config("qwen2", 80, 8192, 64, 29568, 152064, num_key_value_heads=8),
        72_706_203_648, f"{PRIMUS}/qwen2.5_72B",
    ),
    "Qwen/Qwen2-57B-A14B": Published(
        _config("qwen2_moe", 28, 3584, 28, 18944, 151936, num_key_value_heads=4, num_experts=64, num_experts_per_tok=8,
                moe_intermediate_size=2560, shared_expert_intermediate_size=20480, decoder_sparse_step=1),
        57_408_658_944, f"{ZOO}/Qwen2-57B-A14B", 14.2e9,
    ),
    "Qwen/Qwen3-8B": Published(
        _config("qwen3", 36, 4096, 32, 12288, 151936, num_key_value_heads=8, head_dim=128),
        8_190_735_360, f"{SLIME}/qwen3-8B",
    ),
    "Qwen/Qwen3-30B-A3B": Published(
        _config("qwen3_moe", 48, 2048, 32, 6144, 151936, num_key_value_heads=4, head_dim=128, num_experts=128,
                num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[]),
        30_532_122_624, f"{SLIME}/qwen3-30B-A3B", 3.3e9,
    ),
    "google/gemma-2-2b": Published(
        _config("gemma2", 26, 2304, 8, 9216, 256000, num_key_value_heads=4, head_dim=256, sliding_window=4096),
        2_614_341_888, BY_COUNT,
    ),
    "google/gemma-3-1b-pt": Published(
        _config("gemma3_text", 26, 1152, 4, 6912, 262144, num_key_value_heads=1, head_dim=256, sliding_window=512,
                sliding_window_pattern=6),
        999_885_952, KERAS,
    ),
    "EleutherAI/gpt-neox-20b": Published(
        _config("gpt_neox", 44, 6144, 64, 24576, 50432),
        20_554_567_680, "model card of EleutherAI/gpt-neox-20b",
    ),
    "EleutherAI/pythia-6.9b": Published(
        _config("gpt_neox", 32, 4096, 32, 16384, 50432),
        6_857_302_016, "EleutherAI/pythia, README.md",
    ),
    "deepseek-ai/deepseek-moe-16b-base": Published(
        _config("deepseek", 28, 2048, 16, 10944, 102400, num_key_value_heads=16, n_routed_experts=64,
                n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1,
                moe_layer_freq=1),
        16_375_728_128, BY_COUNT, 2.8e9,
    ),
    "deepseek-ai/DeepSeek-V2": Published(
        _config("deepseek_v2", 60, 5120, 128, 12288, 102400, **_LATENT, q_lora_rank=1536, n_routed_experts=160,
                n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1536, first_k_dense_replace=1),
        235_741_434_880, f"{PRIMUS}/deepseek_v2", 21e9,
    ),
    "deepseek-ai/DeepSeek-V2-Lite": Published(
        _config("deepseek_v2", 27, 2048, 16, 10944, 102400, **_LATENT, q_lora_rank=None, n_routed_experts=64,
                n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1),
        15_706_484_224, f"{PRIMUS}/deepseek_v2_lite",
    ),
    "deepseek-ai/DeepSeek-V3": Published(
        _config("deepseek_v3", 61, 7168, 128, 18432, 129280, **_LATENT, q_lora_rank=1536, n_routed_experts=256,
                n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3,
                num_nextn_predict_layers=1),
        684_489_845_504, f"{SLIME}/deepseek-v3", 37e9, counts=COPIES,
    ),
    "nvidia/Nemotron-H-4B-Base-8K": Published(
        _config("nemotron_h", 52, 3072, 32, 12288, 131072, num_key_value_heads=8, head_dim=128, **_MAMBA,
                mamba_num_heads=112, hybrid_override_pattern=_OF_52),
        4.485e9, "Megatron-Bridge, NemotronHModel4BProvider; its two bf16 files of 4.99 and 3.98 GB", rounded=5e6,
    ),
    "nvidia/Nemotron-H-8B-Base-8K": Published(
        _config("nemotron_h", 52, 4096, 32, 21504, 131072, num_key_value_heads=8, head_dim=128, **_MAMBA,
                mamba_num_heads=128, hybrid_override_pattern=_OF_52),
        8.101e9, "its config.json; safetensors count, as listed to four digits", rounded=5e5,
    ),
    "nvidia/Nemotron-H-56B-Base-8K": Published(
        _config("nemotron_h", 118, 8192, 64, 32768, 131072, num_key_value_heads=8, head_dim=128,
                **_MAMBA | {"ssm_state_size": 256}, mamba_num_heads=256,
                hybrid_override_pattern="M-M-M-M*-M-M-M-M-" + "M*-M-M-M-M-" * 8 + "M*-M-M-M-M-M-"),
        56e9, f"{BRIDGE}/h100/nemotronh.py; NGC, nemotron-h-56b-base-8k", rounded=5e8,
    ),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Published(
        _config("nemotron_h", 52, 2688, 32, 1856, 131072, num_key_value_heads=2, head_dim=128, **_MAMBA,
                hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", mamba_num_heads=64,
                n_routed_experts=128, num_experts_per_tok=6, moe_intermediate_size=1856,
                moe_shared_expert_intermediate_size=3712),
        31_577_937_344, f"{BRIDGE}/h100/nemotron_3_nano.py", 3.6e9,
    ),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": Published(
        _config("nemotron_h", 88, 4096, 32, 2688, 131072, num_key_value_heads=2, head_dim=128, **_MAMBA,
                mamba_num_heads=128, n_routed_experts=512, num_experts_per_tok=22, moe_intermediate_size=2688,
                moe_latent_size=1024, moe_shared_expert_intermediate_size=5376, num_nextn_predict_layers=1,
                mtp_hybrid_override_pattern="*E", hybrid_override_pattern="MEMEMEM*" + "EMEMEMEM*" * 2
                + "EMEMEMEMEM*" * 4 + "EMEMEMEM*EMEMEMEME"),
        123_611_012_096, f"{BRIDGE}/h100/nemotron_3_super.py", 12.7e9, MODULES,
    ),
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": Published(
        _config("nemotron_h", None, 8192, 64, 5120, 131072, num_key_value_heads=2, head_dim=128, **_MAMBA,
                mamba_num_heads=256, n_routed_experts=512, num_experts_per_tok=22, moe_intermediate_size=5120,
                moe_latent_size=2048, moe_shared_expert_intermediate_size=10240, num_nextn_predict_layers=1,
                mtp_layers_block_type=["attention", "moe"],
                layers_block_type=[_WORDS[letter] for letter in "MEMEMEM*EMEMEM*" + "EMEMEMEM*EMEMEMEM*EMEMEM*" * 3
                                   + "EMEMEMEM*EMEMEMEME"]),
        560_524_628_992, "its config.json and model.safetensors.index.json", 55e9, MODULES,
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": Published(
        _config("qwen3_next", 48, 2048, 16, 5120, 151936, num_key_value_heads=2, head_dim=256, num_experts=512,
                num_experts_per_tok=10, moe_intermediate_size=512, shared_expert_intermediate_size=512,
                linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128,
                linear_conv_kernel_dim=4, full_attention_interval=4),
        79_674_391_296, f"{ZOO}/Qwen3-Next-80B-A3B; count: Qwen3-Coder-Next",
    ),
    "Qwen/Qwen3.5-27B": Published(
        _config("qwen3_5_text", 64, 5120, 24, 17408, 248320, **_QWEN35, num_key_value_heads=4,
                linear_num_value_heads=48),
        26.9e9, f"{AIC}; count: ggml-org/Llama-macOS, pull request 63", rounded=0.05e9,
    ),
    "Qwen/Qwen3.5-35B-A3B": Published(
        {"model_type": "qwen3_5_moe", "tie_word_embeddings": False, "text_config":
            _config("qwen3_5_moe_text", 40, 2048, 16, None, 248320, **_QWEN35, num_key_value_heads=2,
                    linear_num_value_heads=32, num_experts=256, num_experts_per_tok=8, moe_intermediate_size=512,
                    shared_expert_intermediate_size=512)},
        35_505_251_456, f"{AIC}; count: ollama/ollama, pull request 16031, less 446,571,248 for images", None, MODULES,
    ),
    "Qwen/Qwen3-32B": Published(
        _config("qwen3", 64, 5120, 64, 25600, 151936, num_key_value_heads=8, head_dim=128),
        32_762_123_264, f"{SLIME}/qwen3-32B",
    ),
    "Qwen/Qwen3-235B-A22B": Published(
        _config("qwen3_moe", 94, 4096, 64, 12288, 151936, num_key_value_heads=4, head_dim=128, num_experts=128,
                num_experts_per_tok=8, moe_intermediate_size=1536, decoder_sparse_step=1),
        235_093_634_560, f"{SLIME}/qwen3-235B-A22B", 22e9,
    ),
    "moonshotai/Kimi-K2-Base": Published(
        _config("kimi_k2", 61, 7168, 64, 18432, 163840, **_LATENT, q_lora_rank=1536, n_routed_experts=384,
                n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=1),
        1_026_408_232_448, f"{SLIME}/kimi-k2",
    ),
    "moonshotai/Kimi-Linear-48B-A3B-Base": Published(
        _config("kimi_linear", 27, 2304, 32, 9216, 163840, **_LATENT, q_lora_rank=None, num_experts=256,
                num_experts_per_token=8, num_shared_experts=1, moe_intermediate_size=1024, first_k_dense_replace=1,
                linear_attn_config={"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
                                    "short_conv_kernel_size": 4}),
        49.12e9, "ggml-org/llama.cpp, pull request 17592", rounded=5e6,
    ),
    "deepseek-ai/DeepSeek-V3.2": Published(
        _config("deepseek_v32", 61, 7168, 128, 18432, 129280, **_LATENT, q_lora_rank=1536, n_routed_experts=256,
                n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3,
                num_nextn_predict_layers=1, index_n_heads=64, index_head_dim=128, index_topk=2048),
        685_355_329_792, "the count; DeepSeek-V3 with an indexer: DeepSeek-V3.2-Exp, 2025, section 2.1", counts=COPIES,
    ),
    "zai-org/GLM-4.5": Published(
        _config("glm4_moe", 92, 5120, 96, 12288, 151552, num_key_value_heads=8, head_dim=128, attention_bias=True,
                use_qk_norm=True, n_routed_experts=160, n_shared_experts=1, num_experts_per_tok=8,
                moe_intermediate_size=1536, first_k_dense_replace=3, num_nextn_predict_layers=1),
        358_337_791_296, f"{SLIME}/glm4.5-355B-A32B", counts=COPIES,
    ),
    "zai-org/GLM-5": Published(
        _config("glm_moe_dsa", 78, 6144, 64, 12288, 154880, kv_lora_rank=512, q_lora_rank=2048, qk_nope_head_dim=192,
                qk_rope_head_dim=64, v_head_dim=256, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8,
                moe_intermediate_size=2048, first_k_dense_replace=3, index_n_heads=32, index_head_dim=128,
                index_topk=2048, num_nextn_predict_layers=1),
        744e9, f"{AIC}; count: GLM-5, 2026, arXiv 2602.15763", rounded=0.5e9,
    ),
    "zai-org/GLM-4.6": Published(
        _config("glm4_moe", 92, 5120, 96, 12288, 151552, num_key_value_heads=8, head_dim=128, attention_bias=True,
                use_qk_norm=True, n_routed_experts=160, n_shared_experts=1, num_experts_per_tok=8,
                moe_intermediate_size=1536, first_k_dense_replace=3, num_nextn_predict_layers=1),
        356_785_898_816, "the count; shape of GLM-4.5", counts=MODULES,
    ),
    "MiniMaxAI/MiniMax-M2": Published(
        _config("minimax_m2", 62, 3072, 48, 1536, 200064, num_key_value_heads=8, head_dim=128, num_local_experts=256,
                num_experts_per_tok=8),
        228_689_764_864, f"{SLIME}/minimax-m2",
    ),
    "meta-llama/Llama-4-Scout-17B-16E": Published(
        _config("llama4_text", 48, 5120, 40, 8192, 202048, intermediate_size_mlp=16384, num_key_value_heads=8,
                head_dim=128, num_local_experts=16, num_experts_per_tok=1, interleave_moe_layer_step=1),
        107_769_861_120, f"{PRIMUS}/llama4_17B16E; count: less 871,932,416 for images", 17.2e9,
    ),
    "meta-llama/Llama-4-Maverick-17B-128E": Published(
        _config("llama4_text", 48, 5120, 40, 8192, 202048, intermediate_size_mlp=16384, num_key_value_heads=8,
                head_dim=128, num_local_experts=128, num_experts_per_tok=1, interleave_moe_layer_step=2),
        400_711_848_960, f"{PRIMUS}/llama4_17B128E; count: less 871,932,416 for images", 17.2e9,
    ),
    "mistralai/Mistral-Large-Instruct-2407": Published(
        _config("mistral", 88, 12288, 96, 28672, 32768, num_key_value_heads=8, head_dim=128),
        122_610_069_504, BY_COUNT,
    ),
    "mistralai/Mistral-Small-3.1-24B-Base-2503": Published(
        {"model_type": "mistral3", "text_config": _config("mistral", 40, 5120, 32, 32768, 131072,
                                                           num_key_value_heads=8, head_dim=128)},
        23_572_403_200, "the count of the text part, as in Mistral-Small-24B-Instruct-2501",
    ),
    "google/gemma-3-4b-pt": Published(
        _config("gemma3_text", 34, 2560, 8, 10240, 262208, num_key_value_heads=4, head_dim=256, sliding_window=1024),
        3_880_099_328, KERAS,
    ),
    "google/gemma-3-12b-pt": Published(
        _config("gemma3_text", 48, 3840, 16, 15360, 262208, num_key_value_heads=8, head_dim=256, sliding_window=1024),
        11_765_788_416, KERAS,
    ),
    "google/gemma-3-27b-pt": Published(
        _config("gemma3_text", 62, 5376, 32, 21504, 262208, num_key_value_heads=16, head_dim=128, sliding_window=1024),
        27_009_002_240, KERAS,
    ),
    "allenai/Olmo-3-1025-7B": Published(
        _config("olmo3", 32, 4096, 32, 11008, 100278, num_key_value_heads=32, sliding_window=4096),
        7_298_011_136, BY_COUNT,
    ),
    "allenai/Olmo-3-1125-32B": Published(
        _config("olmo3", 64, 5120, 40, 27648, 100278, num_key_value_heads=8, sliding_window=4096),
        32_233_522_176, BY_COUNT,
    ),
}  # fmt: skip


def counted_parameters(name: str, model: Model) -> int:
    """Return the parameters of a model that its published count counts."""
    counts, modules = CONFIGS[name].counts, [layer for layer in model.layers if layer.name == "prediction"]
    copies = 2 * model.vocabulary * model.hidden * len(modules) * (counts == COPIES)
    norms = model.layers[-1].copied_parameters * len(modules) // (1 + len(modules))  # before the losses of modules
    return model.parameters + copies + (norms + sum(layer.parameters for layer in modules)) * bool(counts)


def flops_as_megatron_counts(name: str) -> float:
    """Return the FLOPs of a step of one sequence of 4,096 tokens, without what Megatron-LM does not count.

    It counts no router, no projection of a hybrid's prediction modules and no convolution (which stays in here), half
    of causal attention, and 2h channels in every Mamba-2 layer.
    """
    model = Model.from_huggingface(CONFIGS[name].config, sequence=4096)
    hybrid = "M" in model.pattern
    model = replace(model, state_heads=2 * model.hidden // model.state_head_size) if hybrid else model
    blocks = [*model.block_letters, *[model.prediction_letters] * model.prediction_layers]
    routers = model.hidden * model.experts * sum("E" in letters for letters in blocks)
    projections = 2 * model.hidden**2 * model.prediction_layers * hybrid
    return model.step_flops() - model.masked_flops() - 6 * model.sequence * (routers + projections)
