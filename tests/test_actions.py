"""The action grammar: what is an action, what is not, and what the refusal says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cells, things

from ppsim import PpsimError, ScheduleError
from ppsim.actions import Action, Kind, parse_action

LARGEST = 2**31 - 2


def test_every_kind_has_its_text():
    texts = {
        "2F0": Action(Kind.F, 2, 0),
        "3B1": Action(Kind.B, 3, 1),
        "3I1": Action(Kind.I, 3, 1),
        "3W1": Action(Kind.W, 3, 1),
        "3R1": Action(Kind.R, 3, 1),
        "3S1": Action(Kind.S, 3, 1),
        "3T1": Action(Kind.T, 3, 1),
        "1SEND_F4": Action(Kind.SEND_F, 1, 4),
        "2RECV_F4": Action(Kind.RECV_F, 2, 4),
        "2SEND_B4": Action(Kind.SEND_B, 2, 4),
        "1RECV_B4": Action(Kind.RECV_B, 1, 4),
        "0UNSHARD": Action(Kind.UNSHARD, 0),
        "0RESHARD": Action(Kind.RESHARD, 0),
        "0REDUCE_GRAD": Action(Kind.REDUCE_GRAD, 0),
        "3OFFLOAD1": Action(Kind.OFFLOAD, 3, 1),
        "3RELOAD1": Action(Kind.RELOAD, 3, 1),
        "(3F1;2B0)OVERLAP_F_B": Action(Kind.OVERLAP_F_B, -1, -1, (Action(Kind.F, 3, 1), Action(Kind.B, 2, 0))),
    }
    assert {action.kind for action in texts.values()} == set(Kind)
    for text, action in texts.items():
        assert parse_action(text) == action
        assert str(action) == text


def test_a_slot_keeps_the_order_in_which_its_parts_are_written():
    assert [str(part) for part in parse_action("(2B0;3F1)OVERLAP_F_B").parts] == ["2B0", "3F1"]


@given(
    st.integers(0, LARGEST),
    st.sampled_from([kind for kind in Kind if kind < Kind.UNSHARD]),
    st.integers(0, LARGEST),
    st.text(" \t\n\r\u00a0", max_size=3),
)
def test_any_stage_and_microbatch_come_back_as_written_and_spaces_around_do_not_matter(stage, kind, microbatch, space):
    text = f"{stage}{kind.name}{microbatch}"
    assert parse_action(f"{space}{text}{space}") == Action(kind, stage, microbatch)
    assert str(parse_action(text)) == text


def test_leading_zeros_do_not_matter():
    assert parse_action("007F0000000000001") == Action(Kind.F, 7, 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is not an action; write one such as 2F0, 3I1, 1SEND_F4, 0UNSHARD or (3F1;2B0)OVERLAP_F_B"),
        ("0F0x", "'0F0x' is not an action"),
        ("0F0 0B0", "'0F0 0B0' is not an action"),
        ("0 F0", "'0 F0' is not an action"),
        ("F0", "'F0' is not an action"),
        ("0f0", "'0f0' is not an action"),
        ("0X0", "'0X0' is not an action"),
        ("-1F0", "'-1F0' is not an action"),
        ("0F-1", "'0F-1' is not an action"),
        ("1.0F0", "'1.0F0' is not an action"),
        ("0F0\0", r"'0F0\x00' is not an action"),
        ("٣F0", "'٣F0' is not an action"),
        ("0F²", "'0F²' is not an action"),
        ("１F0", "'１F0' is not an action"),
        ("0SENDF0", "'0SENDF0' is not an action"),
        ("0F", "'0F': the microbatch is missing; write one after the kind, such as '0F0'"),
        ("2SEND_F", "'2SEND_F': the microbatch is missing; write one after the kind, such as '2SEND_F0'"),
        ("0UNSHARD1", "'0UNSHARD1': UNSHARD concerns a whole stage and takes no microbatch; write '0UNSHARD'"),
        ("2147483647F0", "'2147483647F0': the number 2147483647 is above the largest allowed, 2147483646"),
        ("0F99999999999999999999999", "the number 99999999999999999999 is above the largest allowed, 2147483646"),
        ("(0F0;0F1)OVERLAP_F_B", "'(0F0;0F1)OVERLAP_F_B': an OVERLAP_F_B joins one F and one B, such as (3F1;2B0)"),
        ("(0F0;0I1)OVERLAP_F_B", "an OVERLAP_F_B joins one F and one B"),
        ("(0F0;0UNSHARD)OVERLAP_F_B", "an OVERLAP_F_B joins one F and one B"),
        ("(0F0;0B)OVERLAP_F_B", "'0B': the microbatch is missing"),
        ("(0F0;)OVERLAP_F_B", "'' is not an action"),
        ("(0F0;0B1;0W1)OVERLAP_F_B", "'(0F0;0B1;0W1)OVERLAP_F_B' is not an action"),
        ("(0F0)OVERLAP_F_B", "'(0F0)OVERLAP_F_B' is not an action"),
        ("((0F0;0B0)OVERLAP_F_B;0B1)OVERLAP_F_B", "is not an action"),
        ("0OVERLAP_F_B0", "'0OVERLAP_F_B0' is not an action"),
    ],
)
def test_anything_else_is_refused_with_the_text_and_what_is_legal(text, sentence):
    with pytest.raises(ScheduleError) as caught:
        parse_action(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["9" * 100_000 + "F0", "x" * 100_000, "0" * 100_000 + "UNSHARD7", "1" * 100_000 + "F"])
def test_a_very_long_text_gives_a_short_message(text):
    with pytest.raises(ScheduleError) as caught:
        parse_action(text)
    assert len(str(caught.value)) < 300


@given(st.one_of(cells, things))
def test_only_a_schedule_error_leaves_the_parser(thing):
    try:
        action = parse_action(thing)
    except ScheduleError:
        return
    assert parse_action(str(action)) == action


def test_what_is_no_text_is_refused():
    for thing in (None, 5, b"0F0", ["0F0"], np.int64(3), 10**5000):
        with pytest.raises(PpsimError, match="is not the text of an action"):
            parse_action(thing)
