"""Models of Korthikanti et al. 2022, arXiv 2205.05198, table 3, and what tables 4 and 5 publish about them."""

from ppsim import Model

SHAPES = {  # heads, hidden, layers
    "22B": (64, 6144, 48),
    "175B": (96, 12288, 96),
    "530B": (128, 20480, 105),
    "1T": (160, 25600, 128),
}
TENSOR_PARALLEL = 8


def model(name: str) -> Model:
    heads, hidden, layers = SHAPES[name]
    return Model(
        num_layers=layers, hidden=hidden, heads=heads, vocabulary=51200, sequence=2048, attention="full", causal=False,
        dropout=True, positions="learned", tied_embeddings=True, attention_bias=True, projection_bias=True,
        mlp_bias=True,
    )  # fmt: skip
