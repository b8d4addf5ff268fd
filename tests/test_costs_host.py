"""A GPU with little work waits for the host that starts its kernels."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim import ConfigError
from ppsim.config import ConfigSource
from ppsim.costs import find_device
from ppsim.costs.host_time import (
    EXPERT_LAUNCH,
    block_launches,
    drift_seconds,
    expert_launches,
    host_seconds,
    stall_seconds,
)

SMALL = {"num_layers": 4, "hidden": 1024, "heads": 8, "vocabulary": 8192, "sequence": 1024}
HARDWARE = {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR"}
START = 9e-6  # of an H100's host


def costs(devices=1, **layout) -> Any:
    config = {
        "model": SMALL,
        "hardware": HARDWARE,
        "layout": layout,
        "schedule": {"name": "1f1b", "devices": devices, "microbatches": 4},
    }
    return ConfigSource(config, "test").config().costs


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("size", [1, 4, 64])
def test_a_layer_ends_no_sooner_than_its_host_has_started_it_and_those_before_it(size, devices):
    setup = costs(framework="eager", microbatch_size=size)
    stage, works = setup.for_stages(1, devices=devices), [setup.work(layer) for layer in setup.model.layers]
    forward = [(work.forward, starts * START) for work, starts in zip(works, [0, *[100] * 4, 0], strict=True)]
    backward = [
        (work.input_grad + work.weight_grad, starts * START)
        for work, starts in zip(reversed(works), [0, *[150] * 4, 0], strict=True)
    ]
    for length, layers in (
        (stage.forward[0], forward),
        (stage.input_grad[0] + stage.weight_grad[0], backward),
    ):
        gpu, host = zip(*layers, strict=True)
        late = [sum(host[: last + 1]) + sum(gpu[last + 1 :]) for last in range(len(layers))]
        assert length == pytest.approx(max(sum(gpu), *late))


@pytest.mark.parametrize("size", [1, 64])
def test_a_host_that_waits_for_each_kernel_adds_its_time_to_that_of_the_gpu(size):
    setup = costs(framework="megatron-lm", microbatch_size=size, launch_blocking=True)
    stage, work = setup.for_stages(4, devices=1), setup.work(setup.model.layers[1])
    assert stage.forward[1] == pytest.approx(work.forward + 110 * START)
    assert stage.input_grad[1] + stage.weight_grad[1] == pytest.approx(work.whole - work.forward + 145 * START)


@pytest.mark.parametrize("gated", [False, True])
def test_gated_models_in_megatron_deepspeed_activate_by_separate_operators(gated):
    setups: list[Any] = [
        ConfigSource({"model": SMALL | {"gated": gated}, "hardware": HARDWARE, "layout": {"framework": framework},
                     "schedule": {"name": "1f1b", "devices": 1, "microbatches": 4}}, "test").config().costs
        for framework in ("megatron-deepspeed", "megatron-lm")
    ]  # fmt: skip
    activations = [one.work(one.model.layers[1]).activations for one in setups]
    assert activations[0] == pytest.approx((3 if gated else 1) * activations[1])


def test_a_small_block_takes_the_starts_of_its_framework():
    eager = costs(framework="eager").for_stages(4, devices=1)
    assert eager.forward[1] == pytest.approx(100 * START)
    assert eager.input_grad[1] + eager.weight_grad[1] == pytest.approx(150 * START)


@pytest.mark.parametrize(
    "spared", [{"framework": "eager", "fused": True}, {"framework": "nanotron", "cuda_graphs": True}]
)
def test_compilers_and_cuda_graphs_need_no_host(spared):
    setup = costs(**spared)
    assert setup.for_stages(4, devices=1).forward[1] == pytest.approx(setup.work(setup.model.layers[1]).forward)


def test_a_recomputed_block_is_started_twice():
    stage = costs(framework="eager", recompute="full").for_stages(4, devices=4)
    assert stage.input_grad[1] + stage.weight_grad[1] == pytest.approx(250 * START, rel=0.01)


def test_an_achieved_fraction_contains_the_waiting():
    device = {"like": "H100 SXM", "achieved": 0.5}
    config = {"model": SMALL, "hardware": {**HARDWARE, "device": device}, "layout": {"framework": "nanotron"},
              "schedule": {"name": "1f1b", "devices": 1, "microbatches": 4}}  # fmt: skip
    setup: Any = ConfigSource(config, "test").config().costs
    assert setup.for_stages(4, devices=1).forward[1] == pytest.approx(setup.work(setup.model.layers[1]).forward)


def test_hosts_of_a_pipeline_that_drift_apart_wait_in_each_tensor_parallel_block():
    stages = [
        costs(devices=devices, framework="nanotron", tensor=4).for_stages(4, devices=devices) for devices in (1, 4)
    ]
    whole, cut = (one.forward[1] for one in stages)
    assert cut - whole == pytest.approx(4 * 120 * START, rel=0.01)


def test_hosts_of_a_tensor_group_over_two_nodes_drift_a_quarter_more():
    late = [sum(drift_seconds(one, one.model.layers[1], 2)) for one in (drifting_hosts(8), drifting_hosts(4))]
    assert late[0] == pytest.approx(8 * 120 * START)
    assert late[1] == pytest.approx((1.25 * 8 * 120 + 195) * START)


def drifting_hosts(gpus_per_node):
    setup = costs(devices=2, framework="nanotron", tensor=8)
    return replace(setup, cluster=replace(setup.cluster, gpus_per_node=gpus_per_node))


@pytest.mark.parametrize(("data", "gathers"), [(1, 0), (4, 260)])
def test_deepspeeds_hooks_fetch_sharded_weights_around_each_module_and_gather_those_of_other_gpus(data, gathers):
    whole, sharded = (costs(framework="deepspeed", data=data, sharded=way) for way in (False, True))
    for one, other, starts in zip(
        *(host_seconds(setup, setup.model.layers[1]) for setup in (whole, sharded)), (227, 309), strict=True
    ):
        assert other - one == pytest.approx((starts + gathers) * START)


@pytest.mark.parametrize(
    ("framework", "starts"), [("nanotron", (60, 60)), ("torchtitan", (465, 650)), ("automodel", (465, 650))]
)
def test_tensor_parallel_blocks_are_started_with_their_collectives_and_distributed_tensors(framework, starts):
    alone, split = (costs(framework=framework, fused=False, tensor=tensor) for tensor in (1, 2))
    for one, other, more in zip(
        *(host_seconds(setup, setup.model.layers[1]) for setup in (alone, split)), starts, strict=True
    ):
        assert other - one == pytest.approx(more * START)


def test_hosts_that_drift_do_not_delay_a_block_that_keeps_its_gpu_busy_longer():
    for size, delayed in ((1, 4 * 120 * START), (256, 0.0)):
        drifting = costs(devices=4, framework="nanotron", tensor=4, microbatch_size=size)
        steady = replace(drifting, factors={"drift": 1e-9})
        late, prompt = (one.for_stages(4, devices=4).forward[1] for one in (drifting, steady))
        assert late - prompt == pytest.approx(delayed, rel=0.01)


def test_a_tensor_group_of_several_nodes_waits_for_each_further_node():
    setup = costs(framework="nanotron", tensor=8, microbatch_size=256)
    two = replace(setup, cluster=replace(setup.cluster, gpus_per_node=4, network=setup.cluster.link, node_wait=0.0))
    inside, across = (one.for_stages(1).forward[0] for one in (setup, two))
    assert across - inside == pytest.approx(4 * 195 * START, rel=0.05)


@pytest.mark.parametrize(("devices", "late"), [(1, 0.0), (2, 0.2), (4, 2 * 0.2)])
def test_nanotrons_messages_are_polled_on_64_nodes_and_a_stage_waits_for_each_neighbour(devices, late):
    on_60, on_64 = (
        costs(devices=devices, framework="nanotron", data=8 * nodes // devices).for_stages(4, devices=devices)
        for nodes in (60, 64)
    )
    for one, other, looked in ((on_64.forward, on_60.forward, 0.5), (on_64.input_grad, on_60.input_grad, 0.5)):
        each = late / 0.2  # of a pass shorter than 0.1 s half passes until the next look
        assert one[1] - other[1] == pytest.approx(late + looked * each * other[1], rel=0.02)


def test_a_long_pass_waits_for_half_of_the_time_between_two_looks():
    setup = costs(devices=2, framework="nanotron", data=8 * 64 // 2)
    assert stall_seconds(setup, 2, 1.0) == pytest.approx(0.25)
    assert stall_seconds(setup, 2, 0.0) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("layout", "moved"),
    [
        ({"framework": "nanotron"}, (38, 14)),
        ({"framework": "eager"}, (22, 26)),  # PyTorch's cross_entropy
        ({"framework": "eager", "loss_bytes": 0}, (10, 15)),
        ({"framework": "eager", "fused": True, "fused_loss": False}, (22, 26)),
        ({"framework": "scaling"}, (34, 26)),
        ({"framework": "megatron-core"}, (10, 15)),
        ({"framework": "megatron-core", "fused": False}, (38, 14)),
    ],
)
def test_a_loss_moves_the_bytes_of_each_logit_that_its_kernels_show(layout, moved):
    setup, streaming = costs(**layout), find_device("H100 SXM").rates.streaming
    head, fused = setup.model.layers[-1], costs(**{**layout, "fused_loss": True})
    logits, work = 1024 * 8192, setup.work(setup.model.layers[-1])
    assert work.activations == pytest.approx(streaming(moved[0] * logits))
    assert work.input_grad - fused.work(head).input_grad == pytest.approx(streaming((moved[1] - 15) * logits))


def test_a_separate_loss_of_megatron_core_moves_the_bytes_of_megatron_lm():
    older, core = (
        setup.work(setup.model.layers[-1])
        for setup in (costs(framework=name, fused_loss=False) for name in ("megatron-lm", "megatron-core"))
    )
    assert (core.activations, core.input_grad) == (older.activations, older.input_grad)


def test_a_named_version_of_nanotron_does_not_poll_its_messages():
    late, prompt = (
        costs(devices=4, framework=name, data=128).for_stages(4, devices=4).forward[1]
        for name in ("nanotron", "nanotron 0.4")
    )
    assert late - prompt == pytest.approx(2 * (0.2 + prompt / 2), rel=0.001)


def test_a_slot_that_overlaps_an_f_and_a_b_waits_for_both_hosts():
    setup = costs(devices=2, framework="eager", overlap=True)
    slots = setup.for_stages(4, devices=2).overlap
    assert slots[1][1] == pytest.approx(250 * START, rel=0.01)


def test_the_assumptions_name_host_and_version():
    assumed = " ".join(costs(framework="nanotron 1.0").assumptions)
    assert (
        "a block lasts at least as long as the host of nanotron needs to launch its kernels: 1.35 ms in F, 1.89 ms in B"
        in assumed
    )
    assert "facts about nanotron 1.0 are of no version" in assumed


QWEN3_30B = {
    "num_layers": 48, "hidden": 2048, "heads": 32, "key_value_heads": 4, "head_size": 128, "head_norm": True,
    "ffn": 6144, "experts": 128, "experts_per_token": 8, "expert_ffn": 768, "gated": True, "norm": "rmsnorm",
    "vocabulary": 151936, "sequence": 4096,
}  # fmt: skip


def qwen3_30b(device="H100 SXM", gpus=16, **layout) -> Any:
    own = {"framework": "megatron-core", "bf16_gradients": True, "distributed_optimizer": True, "microbatch_size": 1}
    network = {"link": "NVLink 5", "network": "InfiniBand NDR"} if device == "B200 SXM" else {}
    return ConfigSource(
        {
            "model": QWEN3_30B,
            "hardware": HARDWARE | network | {"device": device, "gpus_per_node": 8},
            "layout": own | {"data": gpus, "expert": gpus} | layout,
            "schedule": {"name": "1f1b", "devices": 1, "microbatches": 64},
            "optimizer": "sync",
        },
        "test",
    ).config()


@pytest.mark.parametrize("recipe", ["block", "tensor"])
def test_a_host_starts_the_product_and_the_cast_of_each_expert_by_one_call(recipe):
    costs = qwen3_30b(fp8=recipe).costs
    block = costs.model.layers[1]
    forward, backward = 8 * 2 * (1 + 1), 8 * 2 * (2 + 1)  # up and down; gradients of inputs and of weights
    assert expert_launches(costs, block) == (forward, backward)
    again = qwen3_30b(fp8=recipe, fp8_inputs=False).costs  # inputs that are not held in fp8 are cast again
    assert expert_launches(again, block) == (forward, backward + 8 * 2)
    assert expert_launches(costs, costs.model.layers[0]) == (0, 0)
    grouped = {"fp8": recipe, "grouped_experts": True}
    assert expert_launches(qwen3_30b(**grouped).costs, block) == (forward, backward)  # one by one in Transformer Engine
    for in_bf16 in ({}, {"fp8": recipe, "fp8_experts": False}):
        assert expert_launches(qwen3_30b(**in_bf16).costs, block) == (8 * 2, 8 * 2 * 2)
    for name in ("mosaicml", "primus"):
        assert expert_launches(qwen3_30b(**grouped, framework=name).costs, block) == (0, 0)


def test_the_gpu_casts_the_tokens_of_each_expert_by_kernels_of_their_own():
    def passes(**own: Any) -> float:
        costs = qwen3_30b(**own).costs
        return costs.work(costs.model.layers[1]).products

    launch = qwen3_30b().costs.cluster.device.operators.launch
    each, joined = (passes(fp8="block", framework=name, grouped_experts=True) for name in ("megatron-core", "mosaicml"))
    assert each - joined == pytest.approx(2 * 7 * launch)  # of 8 experts, before both products


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "dualpipe"])
def test_a_device_waits_for_its_host_once_a_step_if_it_waits_for_all_others(name):
    def steps(optimizer: str, **own: Any) -> Any:
        config = {"model": SMALL | {"num_layers": 8}, "hardware": HARDWARE, "layout": {"framework": "eager"}} | own
        config |= {"schedule": {"name": name, "devices": 2, "microbatches": 4}, "optimizer": optimizer}
        return ConfigSource(config, "test").config().simulate().plan.optimizer_seconds

    waits = costs(framework="eager").layout.run_by.facts.host.step * START
    assert steps("sync") == pytest.approx(steps("post-validated") + waits)
    for more in (
        {"hardware": HARDWARE | {"device": {"like": "H100 SXM", "achieved": 0.5}}},
        {"costs": {"optimizer_step": 1}},
    ):
        assert steps("sync", **more) == pytest.approx(steps("post-validated", **more))


@pytest.mark.parametrize(("exchange", "unfused", "fused"), [("all-to-all", 72, 31), ("hierarchical", 58, 17)])
def test_a_router_starts_as_many_kernels_as_megatrons_page_counts(exchange, unfused, fused):
    """NVIDIA/Megatron-LM, dev, docs/discussions/deepseek-v3-gb200-optimization, 2.1.4."""
    for framework, own, starts in (
        ("megatron-core", None, unfused), ("megatron-core", True, fused), ("megatron-bridge 26.02", None, fused),
        ("megatron-bridge 26.02", False, unfused),
    ):  # fmt: skip
        costs = qwen3_30b(framework=framework, expert_exchange=exchange, fused_router=own).costs
        sent, back = (200, 90) if exchange == "all-to-all" else (0, 0)
        assert block_launches(costs, costs.model.layers[1]) == (110 + starts + sent, 145 + starts + back)


@pytest.mark.parametrize(("exchange", "sent", "back"), [("all-to-all", 100, 45), ("hierarchical", 0, 0)])
def test_cuda_graphs_of_routers_leave_a_host_what_follows_the_first_message_of_an_exchange(exchange, sent, back):
    costs = qwen3_30b(framework="megatron-core", expert_exchange=exchange, cuda_graphs="router").costs
    assert block_launches(costs, costs.model.layers[1]) == (110 + sent, 145 + back)
    with pytest.raises(ConfigError, match="must be true, false or router"):
        qwen3_30b(cuda_graphs="attention")


def test_a_host_starts_each_part_of_a_ring_unless_its_attention_lasts_longer():
    def starts(context, size, **layout):
        setup = costs(framework="megatron-core", context=context, microbatch_size=size, **layout)
        return host_seconds(setup, setup.model.layers[1]), setup.work(setup.model.layers[1]).core

    plain, _ = starts(1, 1)
    ring, core = starts(8, 1)
    added = 7 * 32 * START - core, 7 * 25 * START - 2.5 * core
    assert [after - before for before, after in zip(plain, ring, strict=True)] == pytest.approx(added)
    assert starts(8, 10**5)[0] == starts(8, 1, context_exchange="gather")[0] == plain


def test_a_host_starts_more_of_latent_attention_shared_experts_and_plain_exchanges():
    def starts(expert: int = 16, **model: Any) -> tuple[float, float]:
        config = qwen3_30b(fused_router=True, expert=expert).changed(
            {f"model.{key}": own for key, own in model.items()}
        )
        return block_launches(config.costs, config.costs.model.layers[1])

    dense, router = (110, 145), 31
    assert starts() == tuple(own + router + more for own, more in zip(dense, (200, 90), strict=True))
    assert starts(expert=1) == tuple(own + router for own in dense)
    shared = tuple(own + router + more for own, more in zip(dense, (227, 125), strict=True))
    assert starts(shared_experts=1) == shared
    latent = {"key_value_rank": 512, "rotary_head_size": 64, "value_head_size": 128, "key_value_heads": None}
    assert starts(shared_experts=1, **latent) == (shared[0] + 54, shared[1] + 60)


@pytest.mark.parametrize(
    "waits",
    [{}, {"expert_exchange": "hierarchical"}, {"recompute": "full"}, {"tensor": 1}, {"expert": 1}, {"expert": 128}],
)
def test_a_tensor_group_that_reads_the_numbers_of_tokens_overlaps_no_f_with_its_hosts(waits):
    own = {"tensor": 2, "expert": 16, "expert_tensor": 1, "sequence_parallel": True} | waits
    if own["tensor"] == 1:
        del own["sequence_parallel"]
    costs = qwen3_30b(gpus=128, **own).costs
    block, stage = costs.model.layers[1], costs.for_stages(48, devices=48)
    work, exchanged, (host, host_of_backward) = costs.work(block), costs.exchange(block), host_seconds(costs, block)
    gpu, counts = work.forward + exchanged.forward, not {"tensor", "expert"} & {*waits}
    assert stage.forward[1] == pytest.approx(gpu + host if counts else max(gpu, host))
    if "recompute" in waits:
        again = work.input_grad + work.weight_grad + exchanged.input_grad + gpu
        backward = max(again, host_of_backward + host) + min(gpu, host)
        assert stage.input_grad[1] + stage.weight_grad[1] == pytest.approx(backward, rel=0.01)


@pytest.mark.parametrize(("expert", "recompute"), [(4, "none"), (4, "full"), (64, "none")])
def test_a_gpu_waits_for_starts_of_experts_behind_the_counts_that_no_earlier_layer_hides(expert, recompute):
    own = {"cuda_graphs": True, "expert": expert, "recompute": recompute, "microbatch_size": 2, "fp8": "block"}
    costs = qwen3_30b(gpus=128, **own).costs
    block, stage = costs.model.layers[1], costs.for_stages(48, devices=48)
    work, exchanged = costs.work(block), costs.exchange(block)
    dispatch, computing = exchanged.input_grad / 2, work.forward * block.mlp.forward / block.forward
    idle = max(128 / expert * 2 * 2 * EXPERT_LAUNCH - dispatch - computing, 0)
    assert (idle > 0) == (expert == 4)
    assert stage.forward[1] == pytest.approx(work.forward + exchanged.forward + idle)
    if recompute == "full":
        backward, hosts = stage.input_grad[1] + stage.weight_grad[1], sum(host_seconds(costs, block))
        again = work.whole + exchanged.forward + exchanged.input_grad + idle
        assert backward == pytest.approx(max(again, hosts + idle), rel=0.01)


def test_a_pass_of_many_small_experts_in_fp8_lasts_as_long_as_their_starts():
    stage = qwen3_30b("B200 SXM", 8, fp8="block").costs.for_stages(1)
    forward = 48 * (110 * START + 16 * 2 * 2 * EXPERT_LAUNCH)
    backward = 48 * (145 * START + 16 * 2 * 3 * EXPERT_LAUNCH)
    assert stage.forward[0] + stage.input_grad[0] + stage.weight_grad[0] > 0.95 * (forward + backward)


@pytest.mark.parametrize(
    ("exchange", "seconds"),
    [("hierarchical", 24.71), ("all-to-all", 41.25)],
    ids=["HybridEP", "all-to-all"],
)
def test_experts_over_two_nodes_exchange_tokens_as_fast_as_published(exchange, seconds):
    """NVIDIA-NeMo/Megatron-Bridge@067f987, skills/nemo-mbridge-perf-moe-comm-overlap/SKILL.md: bf16, overlap off."""
    assert qwen3_30b(expert_exchange=exchange).simulate().iteration_time == pytest.approx(seconds, rel=0.1)


@pytest.mark.parametrize(
    ("device", "gpus", "layout", "seconds"),
    [
        ("H100 SXM", 16, {"fp8": "tensor", "fused_router": True, "expert_exchange": "hierarchical"}, 28.94),
        ("B200 SXM", 8, {"fp8": "block", "fused_router": True, "cuda_graphs": "router"}, 27.05),
    ],
)
def test_experts_in_fp8_are_as_slow_as_their_host(device, gpus, layout, seconds):
    """Megatron-Bridge, docs/performance-summary-archive.md, 26.02.01 and 26.02: half of it and less without hosts."""
    assert qwen3_30b(device, gpus, **layout).simulate().iteration_time == pytest.approx(seconds, rel=0.13)
