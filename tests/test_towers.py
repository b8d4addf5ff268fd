"""Towers: an encoder before a backbone, on its own or the backbone's devices, in lists, costs, configs and charts."""

import numpy as np
import pytest
from timelines import actions

import ppsim
from ppsim.config import as_config
from ppsim.costs import EncoderTower, TowerCosts

ENCODER = ppsim.Costs(forward=1, backward=2, per="stage")
BACKBONE = ppsim.Costs(forward=2, backward=4, per="stage")


def simulate(encoder, name="1f1b", devices=2, microbatches=2, own=ENCODER, other=BACKBONE, **options):
    schedule = ppsim.with_encoder(ppsim.build(name, devices=devices, microbatches=microbatches), encoder)
    return ppsim.simulate(schedule, TowerCosts(encoder, own, other), **options)


def simulate_plain(encoder):
    return ppsim.simulate(ppsim.build("gpipe", devices=2, microbatches=2), TowerCosts(encoder, ENCODER, BACKBONE))


def orders(name="1f1b", devices=2, microbatches=4, **encoder):
    schedule = ppsim.build(name, devices=devices, microbatches=microbatches)
    return [" ".join(one) for one in ppsim.with_encoder(schedule, EncoderTower(**encoder)).orders()]


@pytest.mark.parametrize("engine", ["event", "compiled"])
def test_an_encoder_with_a_device_of_its_own_runs_before_the_pipeline_and_after_it(engine):
    assert actions(simulate(EncoderTower(), engine=engine)) == [
        "0F0 0-1  0F1 1-2  0B0 13-15  0B1 19-21",
        "1F0 1-3  1F1 3-5  1B0 9-13  1B1 15-19",
        "2F0 3-5  2B0 5-9  2F1 9-11  2B1 11-15",
    ]


def test_in_phases_each_device_encodes_its_part_before_and_after_the_pipeline():
    assert actions(simulate(EncoderTower(placement="phases"))) == [
        "0F0 0-1  1F0 1-3  1F1 3-5  1B0 9-13  1B1 15-19  0B0 19-21",
        "0F1 0-1  2F0 3-5  2B0 5-9  2F1 9-11  2B1 11-15  0B1 19-21",
    ]


def test_placed_first_the_encoder_lengthens_the_first_stage():
    assert actions(simulate(EncoderTower(placement="first"))) == [
        "0F0 0-1  1F0 1-3  0F1 3-4  1F1 4-6  1B0 9-13  0B0 13-15  1B1 15-19  0B1 19-21",
        "2F0 3-5  2B0 5-9  2F1 9-11  2B1 11-15",
    ]


def test_a_pass_of_two_microbatches_sends_both_at_its_end_and_its_backward_waits_for_both_gradients():
    own = ppsim.Costs(forward=2, backward=4, per="stage", transfer_bytes=2, bandwidth=4)
    assert actions(simulate(EncoderTower(batch=2), own=own)) == [
        "0F0 0-2  0F1 2-2  0B1 20.75-20.75  0B0 20.75-24.75",
        "1F0 2.5-4.5  1F1 4.5-6.5  1B0 10.5-14.5  1B1 16.5-20.5",
        "2F0 4.5-6.5  2B0 6.5-10.5  2F1 10.5-12.5  2B1 12.5-16.5",
    ]


def test_one_forward_one_backward_runs_ahead_by_the_stages_that_follow():
    straight = ppsim.build("1f1b", devices=5, microbatches=6).orders()
    assert orders(devices=3, microbatches=6, stages=2) == [" ".join(one) for one in straight]


def test_copies_take_microbatches_in_turn():
    assert orders(copies=2)[:2] == ["0F0 0F2 0B0 0B2", "0F1 0F3 0B1 0B3"]


@pytest.mark.parametrize("name", ["gpipe", "zb-h1", "interleaved-1f1b", "zb-v", "vocab-1f1b"])
@pytest.mark.parametrize("placement", ["separate", "phases", "first"])
def test_any_schedule_in_one_direction_takes_an_encoder_and_both_engines_agree(name, placement):
    runs = [
        simulate(EncoderTower(placement=placement, batch=3), name, 4, 8, transport="rank", engine=engine)
        for engine in ("event", "compiled")
    ]
    assert np.array_equal(runs[0].end, runs[1].end)
    assert runs[0].device_busy.sum() == pytest.approx(8 / 3 * 3 + 8 * 6 * (runs[0].schedule.num_stages - 1))


def test_prefetched_features_are_those_of_a_step_that_follows_another():
    """Two steps in one list, whose encoder runs on: the second takes as long as one step with prefetched features."""
    frozen = EncoderTower(frozen=True, prefetch=1)
    schedule = ppsim.build("1f1b", devices=2, microbatches=4)
    again = [[f"{one[:2]}{int(one[2:]) + 4}" for one in mine] for mine in schedule.orders()]
    both = ppsim.Schedule.from_orders([one + other for one, other in zip(schedule.orders(), again, strict=True)])
    ahead = EncoderTower(frozen=True)
    costs = TowerCosts(ahead, ENCODER, BACKBONE)
    steps = []
    for lists, count in ((schedule, 4), (both, 8)):
        own = [f"0F{k}" for k in range(count)] + [f"0B{k}" for k in range(count)]
        backbone = ppsim.with_encoder(lists, ahead).orders()[1:]
        steps.append(ppsim.simulate(ppsim.Schedule.from_orders([own, *backbone]), costs).makespan)
    assert simulate(frozen, microbatches=4).makespan == steps[1] - steps[0] == steps[0] - 1


PREFETCHING = EncoderTower(name="ViT", frozen=True, prefetch=1)


def before_prefetching(encoder):
    own = EncoderTower(frozen=True, prefetch=2)
    return ppsim.with_encoder(ppsim.with_encoder(ppsim.build("1f1b", devices=2, microbatches=4), own), encoder)


@pytest.mark.parametrize("engine", ["event", "compiled"])
def test_a_prefetching_encoder_runs_the_first_passes_of_the_next_step_after_those_of_this_one(engine):
    assert actions(simulate(PREFETCHING, microbatches=3, engine=engine)) == [
        "0F1 0-1  0F2 1-2  0F0 2-3  0B0 12-12  0B1 18-18  0B2 24-24",
        "1F0 0-2  1F1 2-4  1B0 8-12  1F2 12-14  1B1 14-18  1B2 20-24",
        "2F0 2-4  2B0 4-8  2F1 8-10  2B1 10-14  2F2 14-16  2B2 16-20",
    ]


@pytest.mark.parametrize("name", ["gpipe", "zb-h1", "interleaved-1f1b", "zb-v", "vocab-1f1b"])
@pytest.mark.parametrize(
    "sizes", [{"prefetch": 2}, {"prefetch": 2, "copies": 2, "stages": 2}, {"prefetch": 1, "batch": 3}]
)
def test_both_engines_agree_on_prefetched_passes_and_no_bound_is_above_them(name, sizes):
    encoder = EncoderTower(frozen=True, **sizes)
    for transport in ("async", "pair", "blocking"):
        own = ppsim.Costs(forward=1.5, per="stage", latency=0.25)
        options = {"own": own, "other": BACKBONE, "transport": transport}
        runs = [simulate(encoder, name, 4, 8, engine=engine, **options) for engine in ("event", "compiled")]
        assert np.array_equal(runs[0].start, runs[1].start)
        assert np.array_equal(runs[0].end, runs[1].end)
        assert runs[0].lower_bound().seconds <= runs[0].makespan
        passes = -(-8 // encoder.batch) if encoder.batch == 1 else 8 / encoder.batch
        assert runs[0].device_busy[: encoder.stages * encoder.copies].sum() == pytest.approx(
            1.5 * passes * encoder.stages
        )


def test_lists_with_prefetched_passes_lower_and_come_back_from_a_csv_file(tmp_path):
    config = as_config(changed(frozen=True, prefetch=2))
    schedule, run = config.build(), config.simulate()
    assert schedule.prefetched.tolist() == [[2, 0], [2, 1]]
    assert schedule.orders()[1][:4] == ["1F2", "1F3", "1F0", "1F1"]
    sent = [action for lists in ppsim.lower(schedule).orders() for action in lists if action.startswith("1SEND_F")]
    assert sent == ["1SEND_F2", "1SEND_F3"]
    schedule.to_csv(tmp_path / "lists.csv")
    read = config.changed({"schedule": {"csv": str(tmp_path / "lists.csv")}})
    assert read.build() == schedule
    assert read.simulate().makespan == run.makespan < config.changed({"encoder.prefetch": 0}).simulate().makespan


def test_an_encoder_before_one_that_prefetches_prefetches_at_least_as_much():
    assert before_prefetching(EncoderTower(frozen=True, prefetch=3)).prefetched.tolist() == [[2, 0], [2, 1], [1, 2]]


def test_charts_say_which_passes_are_those_of_the_next_step():
    run = simulate(PREFETCHING, microbatches=3)
    facts = {row[0] for trace in run.to_plotly().data if trace.customdata is not None for row in trace.customdata}
    assert {"0F1 of ViT", "0F0 of ViT, for the next step", "1F0 of backbone"} <= facts


def test_a_frozen_encoder_has_neither_backward_nor_gradients_nor_activations():
    sizes = {"activation_bytes": 5, "weight_bytes": 1, "gradient_bytes": 2, "optimizer_bytes": 6}
    own, other = (ppsim.Costs(**{**sizes, "forward": 1, "backward": 2}, per="stage") for _ in range(2))
    frozen, trained = (simulate(EncoderTower(frozen=one), own=own, other=other) for one in (True, False))
    assert (frozen.peak_memory[0], trained.peak_memory[0]) == (1, 9 + 2 * 5)
    assert frozen.device_busy[0] == 2


CONFIG = {
    "model": {"num_layers": 8, "hidden": 1024, "heads": 16, "vocabulary": 1000, "sequence": 512},
    "hardware": {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR"},
    "layout": {"data": 4},
    "encoder": {"name": "ViT", "stages": 2, "merge": 4, "layout": {"data": 2},
                "model": {"num_layers": 4, "hidden": 256, "heads": 4, "sequence": 256}},
    "schedule": {"name": "1f1b", "devices": 2, "microbatches": 4},
}  # fmt: skip


def changed(**encoder):
    return {**CONFIG, "encoder": {**CONFIG["encoder"], **encoder}}


def test_a_copy_of_the_encoder_that_serves_two_of_the_backbone_encodes_and_sends_twice_as_much():
    config = as_config(changed())
    run = config.simulate()
    assert config.costs.of_encoder.layout.microbatch_size == 2
    assert config.costs.boundary_bytes == 2 * 256 / 4 * 1024 * 2
    assert run.table.workload.gpus == 2 * 4 + 2 * 2
    alone = config.costs.of_encoder.table(ppsim.build("1f1b", devices=2, microbatches=4))
    assert np.array_equal(run.table.seconds[:, :2], alone.seconds)
    assert run.table.transfer_bytes[0, 1] == run.table.transfer_bytes[1, 2] == config.costs.boundary_bytes
    assert as_config(changed(batch=2)).costs.of_encoder.layout.microbatch_size == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": 0.25}, "encoder.images: a pass has 0.5 images on each copy"),
        ({"prefetch": 1}, "encoder: prefetch=1 needs frozen"),
        ({"placement": "phases"}, "leave out stages=2"),
        ({"placement": "phases", "stages": 1}, "tensor x context x data is 2, but the encoder runs on the 4"),
        ({"placement": "beside"}, "encoder.placement: 'beside' is not known"),
        ({"layout": {"microbatch_size": 2}}, "encoder.layout.microbatch_size: follows from images"),
        ({"model": None}, "encoder.model: is given if, and only if"),
        ({"model": {"hidden": 4}}, "encoder.model.num_layers: is missing"),
        ({"stages": 0}, "encoder.stages: 0 must be a whole number"),
    ],
)  # fmt: skip
def test_illegal_sizes_are_one_error(change, message):
    with pytest.raises(ppsim.ConfigError, match="(?s)" + message.replace(".", r"\.")):
        as_config(changed(**change))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: simulate(EncoderTower(copies=3)), "2 microbatches of the encoder, fewer than its copies"),
        (lambda: simulate(EncoderTower(), "terapipe"), "has slices of microbatches"),
        (lambda: simulate(EncoderTower(), "chimera", 2, 4), "its first stage on 2 devices; use a schedule in one"),
        (lambda: simulate(EncoderTower(frozen=True, prefetch=3)), "2 microbatches of the encoder, fewer than pre"),
        (lambda: before_prefetching(EncoderTower(frozen=True, prefetch=1)), "prefetches 1 microbatch more than"),
        (lambda: simulate_plain(EncoderTower(stages=2)), "the schedule has 2 stages"),
        (lambda: TowerCosts(ENCODER, BACKBONE, EncoderTower()), "must be a ppsim.costs.EncoderTower, before both"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(make, message):
    with pytest.raises(ppsim.PpsimError, match=message):
        make()


def test_charts_name_the_towers():
    run, names = simulate(EncoderTower(name="ViT")), ["ViT 0", "backbone 1", "backbone 2"]
    lines = run.to_text(width=60).splitlines()[1:4]
    assert all(line.startswith(name) for line, name in zip(lines, names, strict=True))
    assert [text.get_text() for text in run.plot().axes[0].get_yticklabels()] == names
    assert list(run.to_plotly().layout.yaxis.ticktext) == names
    assert all(f">{name}</text>" in run.plot().to_svg() for name in names)


@pytest.mark.parametrize("placement", ["first", "phases", "separate"])
def test_actions_name_their_tower_wherever_it_runs(placement):
    run = simulate(EncoderTower(name="ViT", placement=placement))
    facts = {row[0] for trace in run.to_plotly().data if trace.customdata is not None for row in trace.customdata}
    assert {"0F0 of ViT", "1F0 of backbone"} <= facts


def test_the_interval_of_two_towers_is_that_of_the_backbone_made_wider():
    config = as_config("configs/qwen3.5-vl-27b-17xh100.yaml")
    both, alone = config.costs.spread(3), config.derived.spread(2)
    assert both.low < alone.low < alone.high < both.high
    assert "none with an encoder" in both.sentence
    assert config.simulate().interval is not None
    assert simulate(EncoderTower()).interval is None


@pytest.mark.parametrize(
    "changes",
    [
        {"layout.partition": "balanced"},
        {"layout.partition": "optimal"},
        {"layout.sharded": True, "layout.sharded_by": "stage"},
        {"hardware.cards_per_node": 1, "layout.data": 8},
    ],
)
def test_the_backbone_beside_an_encoder_takes_every_partition_sharding_and_cards(changes):
    config = as_config(CONFIG).changed(changes)
    runs = [config.changed({"engine": engine}).simulate() for engine in ("event", "compiled")]
    assert np.array_equal(runs[0].end, runs[1].end)
    assert runs[0].makespan >= config.backbone.simulate().makespan
    if "layout.partition" in changes:
        own, alone = runs[0].table.seconds[0, 2:], config.backbone.simulate().table.seconds[0]
        assert np.array_equal(own, alone)


def test_transfers_of_both_towers_share_the_cards_of_their_own_nodes():
    config = as_config({**CONFIG, "hardware": {**CONFIG["hardware"], "cards_per_node": 1, "gpus_per_node": 4}})
    ports = np.asarray(config.simulate().table.link_ports)
    assert ports[0, 1].tolist() == [-1, -1]  # two devices of the encoder with 2 GPUs each are on one node of 4
    assert ports[1, 2].tolist() == [0, 3]  # out of the encoder's node, into the backbone's first
    assert ports[2, 3].tolist() == [2, 5]


FREE = {**CONFIG, "hardware": {**CONFIG["hardware"], "gpus": 8}, "batch": 16, "layout": {}, "schedule": {},
        "encoder": {key: CONFIG["encoder"][key] for key in ("name", "model", "merge")}}  # fmt: skip


def test_choose_finds_an_encoder_as_fast_as_any_beside_the_layout_that_it_chose():
    only = {"layout.recompute": ["none"], "layout.microbatch_size": [1], "schedule.name": ["1f1b"]}
    only |= {"layout.tensor": [1]}
    found = ppsim.choose(FREE, only=only, workers=1)
    best, run = found.best, found.best.run
    assert run.table.workload.gpus == 8
    assert run.iteration_time == found.ranked[0].step == min(one.step for one in found.ranked)
    assert found.counts["points"] == sum(found.counts.values()) - found.counts["points"]
    assert {"encoder.placement", "encoder.batch"} <= found.space.values.keys()
    for batch in (1, 2, 4, 8):
        try:
            other = best.config.changed({"encoder.batch": batch}).simulate()
        except ppsim.PpsimError:
            continue
        assert other.iteration_time >= run.iteration_time * (1 - 0.01)


def test_choose_keeps_what_the_config_says_about_the_encoder():
    only = {"schedule.name": ["1f1b"], "layout.recompute": ["none"], "layout.microbatch_size": [1]}
    only |= {"layout.tensor": [1], "encoder.batch": [1, 2]}
    config = {**FREE, "encoder": {**FREE["encoder"], "placement": "separate", "stages": 1, "copies": 1}}
    found = ppsim.choose(config, only=only, workers=1)
    assert found.space.values["encoder.batch"] == [1, 2]
    assert all("encoder.placement" not in one.changes for one in found.ranked)
    assert found.best.config.costs.encoder.placement == "separate"
    with pytest.raises(ppsim.ConfigError, match=r"encoder\.frozen. cannot be free; use some of: encoder\.placement"):
        ppsim.choose(config, ["encoder.frozen"])


def test_advice_on_two_towers_keeps_their_gpus_and_changes_either():
    config = as_config(CONFIG)
    advice = ppsim.advise(config)
    changed = {key for one in advice.advice for key in one.changes}
    assert {"encoder.batch", "encoder.layout.data", "layout.tensor", "layout.partition"} <= changed
    for one in advice.advice:
        assert config.changed(one.changes).simulate().table.workload.gpus == advice.run.table.workload.gpus


def test_advice_on_an_encoder_in_phases_moves_its_copies_with_the_backbones_groups():
    config = as_config(changed(placement="phases", stages=1, layout={"data": 4}))
    moved = [one for one in ppsim.advise(config).advice if "schedule.devices" in one.changes]
    assert moved
    assert all("encoder.layout.data" in one.changes for one in moved)


def test_no_framework_gets_flags_for_two_towers():
    with pytest.raises(ppsim.ConfigError, match="Megatron-LM: ppsim writes no flags for an encoder and its backbone"):
        ppsim.to_launch(as_config(CONFIG), "Megatron-LM")


def test_a_framework_offers_only_what_it_runs_beside_the_encoder():
    job = changed(placement="separate", stages=1, layout={"data": 1}) | {"batch": 16}
    found = ppsim.choose(job, ["schedule.name"], framework="Megatron-LM", headroom=0)
    assert {one.changes["schedule.name"] for one in found.ranked} == {"1f1b"}
    with pytest.raises(ppsim.ConfigError, match="can run: PyTorch runs an encoder in the first stage only"):
        ppsim.choose(job, ["schedule.name"], framework="PyTorch")


AUDIO = {"name": "audio", "merge": 2, "model": {"num_layers": 2, "hidden": 128, "heads": 2, "sequence": 128}}


@pytest.mark.parametrize("engine", ["event", "compiled"])
def test_two_encoders_feed_one_backbone(engine):
    config = as_config(changed(another=AUDIO, batch=2)).changed({"engine": engine})
    run = config.simulate()
    assert run.table.towers == ("ViT", "ViT", "audio", "backbone", "backbone")
    assert run.table.workload.gpus == 2 * 4 + 2 * 2 + 1
    assert run.table.transfer_bytes[0, 1:3].tolist() == [0.0, 2 * 256 / 4 * 1024 * 2 + 4 * 128 / 2 * 1024 * 2]
    alone = as_config(changed(batch=2)).changed({"engine": engine}).simulate()
    own = as_config(CONFIG | {"encoder": AUDIO}).changed({"engine": engine}).simulate()
    busy = np.concatenate([alone.device_busy[:2], own.device_busy[:1], alone.device_busy[2:]])
    assert run.device_busy == pytest.approx(busy)
    assert run.makespan >= max(alone.makespan, own.makespan)
    assert any("encoders run in line" in line for line in config.costs.assumptions)
    assert run.interval is not None


@pytest.mark.parametrize("placement", ["first", "phases"])
def test_two_encoders_share_the_backbones_devices(placement):
    shared = {"placement": placement, "stages": 1, "layout": {"data": 4}}
    runs = [
        as_config(changed(**shared, another=AUDIO | {"placement": placement, "layout": {"data": 4}}))
        .changed({"engine": engine})
        .simulate()
        for engine in ("event", "compiled")
    ]
    assert np.array_equal(runs[0].end, runs[1].end)
    assert runs[0].schedule.devices == 2
    starts = {"first": ["0F0", "1F0", "2F0"], "phases": ["0F0", "0F2", "1F0"]}
    assert runs[0].schedule.orders()[0][:3] == starts[placement]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"placement": "first"}, "encoder.another.placement: must be that of the encoder before it"),
        ({"copies": 2}, "encoder.another.copies: needs one encoder"),
        ({"name": "ViT"}, "encoder.another.name: must differ"),
        ({"stage": 2}, "encoder.another.stage: unknown key"),
    ],
)
def test_illegal_sizes_of_a_second_encoder_are_one_error(change, message):
    with pytest.raises(ppsim.ConfigError, match=message.replace(".", r"\.")):
        as_config(changed(another=AUDIO | change))


def test_choose_and_advice_keep_a_second_encoder():
    config = as_config(changed(another=AUDIO, placement="separate", stages=1, copies=1, layout={"data": 2}))
    found = ppsim.choose(config, only={"encoder.batch": [1, 2], "layout.recompute": ["none"]}, workers=1)
    assert found.best.run.table.workload.gpus == 2 * 4 + 2 + 1
    assert ppsim.advise(config).advice


GIVEN = {
    "schedule": {"name": "gpipe", "devices": 2, "microbatches": 4},
    "costs": {"forward": 2, "backward": 4, "per": "stage"},
    "encoder": {"costs": {"forward": 1, "backward": 2}},
}


def test_choose_and_advice_take_given_costs_of_both_towers():
    found = ppsim.choose(GIVEN, ["schedule.name", "encoder.placement"], workers=1)
    placements = {one.changes["encoder.placement"] for one in found.ranked}
    assert placements == {"separate", "phases", "first"}
    assert found.ranked[0].step == found.best.run.makespan
    kept = ppsim.choose(GIVEN, ["schedule.name"], workers=1)
    assert kept.best.config.costs.encoder.placement == "separate"
    assert "schedule.name" in {key for one in ppsim.advise(GIVEN, research=True).advice for key in one.changes}
