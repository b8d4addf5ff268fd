"""Megatron-LM's pipeline layout strings: read, written, and what they say of a model's stages."""

from typing import Any

import pytest
from command_line import LLAMA
from command_line import ppsim as run_ppsim

import ppsim
from ppsim.costs import LayoutString, Pieces, balanced, balanced_with


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Et*3|(tt|)*29,m|L", ("Ettt", *["tt"] * 29, "m", "L")),
        ("E t | t L", ("Et", "tL")),
        ("E|t*2||tL", ("E", "tt", "", "tL")),
        ("E|*3tL", ("E", "", "", "tL")),
        ("EtL", ("EtL",)),
        ("Et|m|m|m|LL|LL", ("Et", "m", "m", "m", "LL", "LL")),
        ("Et|(t*2|)*2(t|)*2L", ("Et", "tt", "tt", "t", "t", "L")),
    ],
)
def test_a_layout_string_says_what_each_stage_holds(text, stages):
    assert LayoutString.parse(text).stages == stages
    assert LayoutString.parse(str(LayoutString.parse(text))) == LayoutString.parse(text)


def test_equal_stages_and_letters_are_written_once():
    assert str(LayoutString(("Ettt", *["tt"] * 29, "m", "L"))) == "Et*3|(t*2|)*29m|L"


@pytest.mark.parametrize("text", ["E|t", "t|L", "EL|t", "E|tx|L", "Et*|L", "E(t|*2L", "EmtL", "EtLm", "||"])
def test_what_is_no_layout_string_is_refused_with_an_example(text):
    with pytest.raises(ppsim.ConfigError, match=r"such as 'Et\*3"):
        LayoutString.parse(text)


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("Et|L|L", "holds 2 L; write L once: there is no m"),
        ("Et|m|LL|L", "holds 3 L; write L once, or 2 times: for the model and each of 1 m"),
        ("Et|m*3|L*3", "holds 3 L; write L once, or 4 times"),
    ],
)
def test_a_loss_is_the_models_or_there_is_one_more_for_each_prediction_module(text, legal):
    """Megatron-LM, pull request 5318, `validate_layer_layout`: 1 or 1 + mtp_num_layers."""
    with pytest.raises(ppsim.ConfigError, match=legal):
        LayoutString.parse(text)


def test_a_string_of_too_many_pieces_is_refused_at_once():
    with pytest.raises(ppsim.ConfigError, match="has more than 100000 pieces"):
        LayoutString.parse("E(t*1000|)*1000L")


def _config(**layout) -> Any:
    return ppsim.load_config(LLAMA, overrides={f"layout.{key}": value for key, value in layout.items()})


def test_a_config_takes_one_and_the_run_prints_it_again():
    config = _config(partition="Et*5|(t*4|)*5t*5|t*2L")
    assert config.costs.layout.stage_layers(config.model, 8, [])[-1][-1].name == "head"
    assert [len(stage) for stage in config.costs.stage_layers(8)] == [6, 4, 4, 4, 4, 4, 5, 3]
    assert config.costs.megatron_layout(8) == "Et*5|(t*4|)*5t*5|t*2L"
    counts = _config(partition=[5, 4, 4, 4, 4, 4, 5, 2])
    assert config.simulate().makespan == counts.simulate().makespan


def test_a_stage_of_the_head_alone_and_an_empty_stage_run():
    config = _config(partition="Et*5|(t*5|)*3t*6||t*6|L")
    assert config.simulate().device_busy[5] == 0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Et*16|t*16L", "has 2 stages, but the schedule has 8"),
        ("Et*4|(t*4|)*6t*3L", r"holds 31 t \(block\), but the model has 32"),
        ("Et*4|(t*4|)*6t*4mL", r"holds 1 m \(prediction\), but the model has 0"),
    ],
)
def test_one_that_does_not_fit_model_or_schedule_names_the_numbers(text, fault):
    with pytest.raises(ppsim.CostError, match=fault):
        _config(partition=text).simulate()


def test_a_wrong_one_in_a_config_names_its_key():
    outcome = run_ppsim("simulate", LLAMA, "--set", "layout.partition=Et|q|L")
    assert outcome.status == 2
    assert "layout.partition: 'Et|q|L': 'q|L' is not a part of a layout string" in outcome.err


def test_a_layout_shows_the_call_that_makes_it():
    layout = ppsim.Layout(partition="Et*2|t*2L")
    assert repr(layout) == "Layout(partition='Et*2|t*2L')"
    assert ppsim.Layout(partition=layout.partition) == layout


def test_the_head_takes_the_place_of_blocks_on_its_device():
    pieces = Pieces(blocks=14, predictions=0, embedding=0.0, block=1.0, prediction=0.0, head=2.0)
    assert str(balanced(pieces, range(4))) == "Et*4|(t*4|)*2t*2L"


def test_stages_of_one_device_share_its_work():
    pieces = Pieces(blocks=14, predictions=0, embedding=0.0, block=1.0, prediction=0.0, head=2.0)
    assert str(balanced(pieces, [0, 1, 0, 1])) == "Et*4|(t*4|)*2t*2L"


def test_predictions_go_where_the_busiest_device_is_least_busy():
    pieces = Pieces(blocks=4, predictions=1, embedding=0.0, block=1.0, prediction=2.0, head=2.0)
    assert str(balanced(pieces, range(4))) == "Et*2|t*2|m|L"


def test_a_device_takes_no_more_blocks_than_it_has_memory_for():
    pieces = Pieces(blocks=8, predictions=0, embedding=0.0, block=1.0, prediction=0.0, head=0.0)
    assert str(balanced_with(pieces, range(4), 3, [1, 1, 3, 3])[1]) == "Et|t|t*3|t*3L"


@pytest.mark.parametrize("name", ppsim.schedules())
def test_every_family_takes_a_string_of_its_stages_in_the_order_of_the_model(name):
    case = ppsim.load_config(LLAMA).changed({"schedule.name": name, "layout.first_stage_layers": None})
    schedule = case.build()
    stages = schedule.num_stages
    blocks = [32 // stages + (stage % 2 * 2 - 1) for stage in range(stages)]
    run: Any = case.changed({"layout.partition": "E" + "|".join("t" * count for count in blocks) + "L"}).simulate(
        schedule
    )
    held = [stage.get("block", 0) for stage in run.costs.stages(stages)]
    assert held == blocks
    assert ppsim.load_config(LLAMA).changed({"layout.partition": run.to_dict()["megatron_layout"]}).data
    busy = run.table.seconds[1]
    assert (busy[2:-1:2] < busy[1:-2:2]).all()
