"""Fields of published `config.json` files that shape the model, and the parameter counts on their model cards.

A count is that of the stored weights where a source gives it, as for Kimi K2; else the rounded one
of the model card or report. Parts for images and modules for further tokens do not count, unless `GLM_4_5` says so.
"""

from ppsim import Model


def _config(model_type, layers, hidden, heads, ffn, vocabulary, **others):
    return {
        "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "intermediate_size": ffn, "vocab_size": vocabulary, "max_position_embeddings": 4096, **others,
    }  # fmt: skip


GLM_4_5 = "zai-org/GLM-4.5"  # arXiv 2508.06471, table 1, counts prediction modules, but no embedding and no head
_MAMBA = {"mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4}
_LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}

# Repository on huggingface.co: config, parameters, parameters that a token visits (None: dense, or counted otherwise).
CONFIGS = {
    "meta-llama/Llama-2-7b": (_config("llama", 32, 4096, 32, 11008, 32000), 6.74e9, None),
    "meta-llama/Meta-Llama-3-8B": (_config("llama", 32, 4096, 32, 14336, 128256, num_key_value_heads=8), 8.03e9, None),
    "meta-llama/Meta-Llama-3-70B": (_config("llama", 80, 8192, 64, 28672, 128256, num_key_value_heads=8), 70.6e9, None),
    "meta-llama/Llama-3.1-405B": (_config("llama", 126, 16384, 128, 53248, 128256, num_key_value_heads=8), 406e9, None),
    "mistralai/Mistral-7B-v0.1": (_config("mistral", 32, 4096, 32, 14336, 32000, num_key_value_heads=8), 7.24e9, None),
    "mistralai/Mixtral-8x7B-v0.1": (
        _config("mixtral", 32, 4096, 32, 14336, 32000, num_key_value_heads=8, num_local_experts=8,
                num_experts_per_tok=2),
        46.7e9,
        12.9e9,
    ),
    "openai/gpt-oss-20b": (
        _config("gpt_oss", 24, 2880, 64, 2880, 201088, num_key_value_heads=8, head_dim=64, num_local_experts=32,
                num_experts_per_tok=4, sliding_window=128, attention_bias=True, swiglu_limit=7.0,
                layer_types=["sliding_attention", "full_attention"] * 12),
        20.9e9,
        None,
    ),
    "openai/gpt-oss-120b": (
        _config("gpt_oss", 36, 2880, 64, 2880, 201088, num_key_value_heads=8, head_dim=64, num_local_experts=128,
                num_experts_per_tok=4, sliding_window=128, attention_bias=True, swiglu_limit=7.0),
        116.8e9,
        None,
    ),
    "Qwen/Qwen2.5-0.5B": (
        _config("qwen2", 24, 896, 14, 4864, 151936, num_key_value_heads=2, tie_word_embeddings=True), 0.494e9, None,
    ),
    "Qwen/Qwen2.5-7B": (_config("qwen2", 28, 3584, 28, 18944, 152064, num_key_value_heads=4), 7.61e9, None),
    "Qwen/Qwen2.5-72B": (_config("qwen2", 80, 8192, 64, 29568, 152064, num_key_value_heads=8), 72.7e9, None),
    "Qwen/Qwen2-57B-A14B": (
        _config("qwen2_moe", 28, 3584, 28, 18944, 151936, num_key_value_heads=4, num_experts=64, num_experts_per_tok=8,
                moe_intermediate_size=2560, shared_expert_intermediate_size=20480, decoder_sparse_step=1),
        57.4e9,
        14.2e9,
    ),
    "Qwen/Qwen3-8B": (_config("qwen3", 36, 4096, 32, 12288, 151936, num_key_value_heads=8, head_dim=128), 8.19e9, None),
    "Qwen/Qwen3-30B-A3B": (
        _config("qwen3_moe", 48, 2048, 32, 6144, 151936, num_key_value_heads=4, head_dim=128, num_experts=128,
                num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[]),
        30.5e9,
        3.3e9,
    ),
    "google/gemma-2-2b": (
        _config("gemma2", 26, 2304, 8, 9216, 256000, num_key_value_heads=4, head_dim=256, sliding_window=4096),
        2.61e9,
        None,
    ),
    "google/gemma-3-1b-pt": (
        _config("gemma3_text", 26, 1152, 4, 6912, 262144, num_key_value_heads=1, head_dim=256, sliding_window=512,
                sliding_window_pattern=6),
        1.0e9,
        None,
    ),
    "EleutherAI/gpt-neox-20b": (_config("gpt_neox", 44, 6144, 64, 24576, 50432), 20.55e9, None),
    "EleutherAI/pythia-6.9b": (_config("gpt_neox", 32, 4096, 32, 16384, 50432), 6.857e9, None),
    "deepseek-ai/deepseek-moe-16b-base": (
        _config("deepseek", 28, 2048, 16, 10944, 102400, num_key_value_heads=16, n_routed_experts=64,
                n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1,
                moe_layer_freq=1),
        16.4e9,
        2.8e9,
    ),
    "deepseek-ai/DeepSeek-V2": (
        _config("deepseek_v2", 60, 5120, 128, 12288, 102400, **_LATENT, q_lora_rank=1536, n_routed_experts=160,
                n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1536, first_k_dense_replace=1),
        236e9,
        21e9,
    ),
    "deepseek-ai/DeepSeek-V2-Lite": (
        _config("deepseek_v2", 27, 2048, 16, 10944, 102400, **_LATENT, q_lora_rank=None, n_routed_experts=64,
                n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1),
        15.7e9,
        None,
    ),
    "deepseek-ai/DeepSeek-V3": (
        _config("deepseek_v3", 61, 7168, 128, 18432, 129280, **_LATENT, q_lora_rank=1536, n_routed_experts=256,
                n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3,
                num_nextn_predict_layers=1),
        671e9,
        37e9,
    ),
    "nvidia/Nemotron-H-8B-Base-8K": (
        _config("nemotron_h", 52, 4096, 32, 21504, 131072, num_key_value_heads=8, head_dim=128, **_MAMBA,
                hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", mamba_num_heads=128),
        8.10e9,
        None,
    ),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (
        _config("nemotron_h", 52, 2688, 32, 1856, 131072, num_key_value_heads=2, head_dim=128, **_MAMBA,
                hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", mamba_num_heads=64,
                n_routed_experts=128, num_experts_per_tok=6, moe_intermediate_size=1856,
                moe_shared_expert_intermediate_size=3712),
        31.6e9,
        3.6e9,
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (
        _config("qwen3_next", 48, 2048, 16, 5120, 151936, num_key_value_heads=2, head_dim=256, num_experts=512,
                num_experts_per_tok=10, moe_intermediate_size=512, shared_expert_intermediate_size=512,
                linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128,
                linear_conv_kernel_dim=4, full_attention_interval=4),
        80e9,
        None,
    ),
    "Qwen/Qwen3-32B": (
        _config("qwen3", 64, 5120, 64, 25600, 151936, num_key_value_heads=8, head_dim=128), 32.8e9, None,
    ),
    "Qwen/Qwen3-235B-A22B": (
        _config("qwen3_moe", 94, 4096, 64, 12288, 151936, num_key_value_heads=4, head_dim=128, num_experts=128,
                num_experts_per_tok=8, moe_intermediate_size=1536, decoder_sparse_step=1),
        235e9,
        22e9,
    ),
    "moonshotai/Kimi-K2-Base": (
        _config("kimi_k2", 61, 7168, 64, 18432, 163840, **_LATENT, q_lora_rank=1536, n_routed_experts=384,
                n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=1),
        1_026_408_232_448,
        None,
    ),
    "moonshotai/Kimi-Linear-48B-A3B-Base": (
        _config("kimi_linear", 27, 2304, 32, 9216, 163840, **_LATENT, q_lora_rank=None, num_experts=256,
                num_experts_per_token=8, num_shared_experts=1, moe_intermediate_size=1024, first_k_dense_replace=1,
                linear_attn_config={"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
                                    "short_conv_kernel_size": 4}),
        49e9,
        None,
    ),
    "deepseek-ai/DeepSeek-V3.2": (
        _config("deepseek_v32", 61, 7168, 128, 18432, 129280, **_LATENT, q_lora_rank=1536, n_routed_experts=256,
                n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3,
                num_nextn_predict_layers=1, index_n_heads=64, index_head_dim=128, index_topk=2048),
        671e9,
        None,
    ),
    GLM_4_5: (
        _config("glm4_moe", 92, 5120, 96, 12288, 151552, num_key_value_heads=8, head_dim=128, attention_bias=True,
                use_qk_norm=True, n_routed_experts=160, n_shared_experts=1, num_experts_per_tok=8,
                moe_intermediate_size=1536, first_k_dense_replace=3, num_nextn_predict_layers=1),
        355e9,
        None,
    ),
    "MiniMaxAI/MiniMax-M2": (
        _config("minimax_m2", 62, 3072, 48, 1536, 200064, num_key_value_heads=8, head_dim=128, num_local_experts=256,
                num_experts_per_tok=8),
        229e9,
        None,
    ),
    "meta-llama/Llama-4-Scout-17B-16E": (
        _config("llama4_text", 48, 5120, 40, 8192, 202048, intermediate_size_mlp=16384, num_key_value_heads=8,
                head_dim=128, num_local_experts=16, num_experts_per_tok=1, interleave_moe_layer_step=1),
        107.8e9,
        17.2e9,
    ),
    "meta-llama/Llama-4-Maverick-17B-128E": (
        _config("llama4_text", 48, 5120, 40, 8192, 202048, intermediate_size_mlp=16384, num_key_value_heads=8,
                head_dim=128, num_local_experts=128, num_experts_per_tok=1, interleave_moe_layer_step=2),
        400.7e9,
        17.2e9,
    ),
    "mistralai/Mistral-Large-Instruct-2407": (
        _config("mistral", 88, 12288, 96, 28672, 32768, num_key_value_heads=8, head_dim=128), 122.6e9, None,
    ),
    "mistralai/Mistral-Small-3.1-24B-Base-2503": (
        {"model_type": "mistral3", "text_config": _config("mistral", 40, 5120, 32, 32768, 131072,
                                                           num_key_value_heads=8, head_dim=128)},
        23.6e9,
        None,
    ),
    "google/gemma-3-4b-pt": (
        _config("gemma3_text", 34, 2560, 8, 10240, 262208, num_key_value_heads=4, head_dim=256, sliding_window=1024),
        3.88e9,
        None,
    ),
    "google/gemma-3-12b-pt": (
        _config("gemma3_text", 48, 3840, 16, 15360, 262208, num_key_value_heads=8, head_dim=256, sliding_window=1024),
        11.77e9,
        None,
    ),
    "google/gemma-3-27b-pt": (
        _config("gemma3_text", 62, 5376, 32, 21504, 262208, num_key_value_heads=16, head_dim=128, sliding_window=1024),
        27.0e9,
        None,
    ),
    "allenai/Olmo-3-1025-7B": (
        _config("olmo3", 32, 4096, 32, 11008, 100278, num_key_value_heads=32, sliding_window=4096), 7.30e9, None,
    ),
    "allenai/Olmo-3-1125-32B": (
        _config("olmo3", 64, 5120, 40, 27648, 100278, num_key_value_heads=8, sliding_window=4096), 32.2e9, None,
    ),
}  # fmt: skip


def counted_parameters(name: str, model: Model) -> int:
    """Return the parameters of a model that its published count counts."""
    if name != GLM_4_5:
        return model.parameters
    modules = sum(layer.parameters for layer in model.layers if layer.name == "prediction")
    return model.parameters + modules - 2 * model.vocabulary * model.hidden
