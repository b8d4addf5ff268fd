"""Fields of published `config.json` files that shape the model, and the parameter counts on their model cards."""


def _config(model_type, layers, hidden, heads, ffn, vocabulary, **others):
    return {
        "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "intermediate_size": ffn, "vocab_size": vocabulary, "max_position_embeddings": 4096, **others,
    }  # fmt: skip


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
}  # fmt: skip
