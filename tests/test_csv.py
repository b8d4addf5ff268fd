"""The CSV file of a schedule: PyTorch's format, one row a device, no header."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_schedules import schedules
from strategies import things

import ppsim
from ppsim import ConfigError, PpsimError, Program, Schedule, ScheduleError

in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def read(tmp_path):
    """Reads a text or bytes as a CSV file."""

    def read_csv(content, **options):
        path = tmp_path / "schedule.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return Schedule.from_csv(path, **options)

    return read_csv


def faults(read, content):
    with pytest.raises(ScheduleError) as caught:
        read(content)
    return [fault.split("schedule.csv: ")[1] for fault in caught.value.faults]


def test_a_file_has_one_row_a_device(read, tmp_path):
    schedule = read("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    assert schedule.orders() == [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
    assert schedule.name == str(tmp_path / "schedule.csv")
    assert read("0F0,0B0\n", name="mine").name == "mine"


@pytest.mark.parametrize(
    "text",
    [
        "0F0,0B0\n1F0,1B0\n",
        ",0F0,,,0B0,\n1F0,1B0\n",
        "0F0,,,,0B0\n,1F0,1B0,\n",
        ",\n0F0,0B0\n",
        "0F0,(0F1;0B0)OVERLAP_F_B,,0B1\n",
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1I0,1SEND_B0,1W0\n",
    ],
)
def test_a_file_comes_back_byte_for_byte_with_its_idle_cells(text, read, tmp_path):
    read(text).to_csv(tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == text.encode()


@in_one_folder
@given(schedules(), st.randoms(use_true_random=False))
def test_any_schedule_with_idle_slots_anywhere_comes_back(tmp_path, schedule, random):
    table = schedule.orders()
    for row in table:
        for _ in range(random.randint(0, 5)):
            row.insert(random.randint(0, len(row)), "")
    spaced = Schedule.from_orders(table)
    spaced.to_csv(tmp_path / "schedule.csv")
    text = (tmp_path / "schedule.csv").read_text()
    assert text == "".join(",".join(row) + "\n" for row in table)
    again = Schedule.from_csv(tmp_path / "schedule.csv")
    assert again == schedule
    assert again.idle.tolist() == spaced.idle.tolist()


def test_lists_with_transfers_are_a_program(read):
    program = read("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
    assert isinstance(program, Program)
    assert program.schedule.orders() == [["0F0", "0B0"], ["1F0", "1B0"]]


@pytest.mark.parametrize(
    "content",
    [
        "0F0,0B0\r\n1F0,1B0\r\n",
        "0F0,0B0\r1F0,1B0\r",
        "\ufeff0F0,0B0\n1F0,1B0\n",
        '"0F0","0B0"\n"1F0",1B0\n',
        " 0F0 , 0B0\t\n1F0,1B0",
        "0F0,0B0\n1F0,1B0\n\n",
        "0F0,0B0\n1F0,1B0\n\n \n\t\n\n",
    ],
    ids=["CRLF", "CR", "BOM", "quotes", "spaces", "blank last line", "blank last lines"],
)
def test_what_editors_and_spreadsheets_do_to_a_file_does_not_matter(content, read):
    assert read(content).orders() == [["0F0", "0B0"], ["1F0", "1B0"]]


def test_rows_may_be_ragged(read):
    assert read("0F0,0F1,0B0,0B1\n1F0,,1F1,1B0,1B1,,\n").devices == 2


@pytest.mark.parametrize("blank", ["", ",,", '""', "  "])
def test_a_blank_row_between_others_is_a_device_that_the_validator_names(blank, read):
    schedule = read(f"0F0,0B0\n{blank}\n1F0,1B0\n")
    assert schedule.devices == 3
    with pytest.raises(ScheduleError, match=r"^device 1 \(row 2\) has no actions; every device runs at least one"):
        schedule.validate()


def test_a_last_row_of_commas_is_a_device_too(read):
    with pytest.raises(ScheduleError, match=r"device 1 \(row 2\) has no actions"):
        read("0F0,0B0\n,\n").validate()


def test_each_wrong_cell_is_named_by_row_and_column_counted_from_1(read):
    assert [fault.split(";")[0] for fault in faults(read, "0F0,,0Q0\n\n1F0x,1F\n")] == [
        "row 1, column 3: '0Q0' is not an action",
        "row 3, column 1: '1F0x' is not an action",
        "row 3, column 2: '1F': the microbatch is missing",
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("0F0,0\0F1\n", r"row 1, column 2: '0\x00F1' is not an action"),
        ("0F0,٣F1\n", "row 1, column 2: '٣F1' is not an action"),
        ("0F0;0B0\n", "row 1, column 1: '0F0;0B0' is not an action"),
        ("device 0,device 1\n0F0,0B0\n", "row 1, column 1: 'device 0' is not an action"),
        ('"0F0\n0B0"\n', r"row 1, column 1: '0F0\n0B0' is not an action"),
        ("0F0,2147483648B0\n", "the number 2147483648 is above the largest allowed"),
        ("x" * 1000 + "\n", "row 1, column 1: 'xxxxx"),
    ],
)
def test_odd_cells_are_faults_with_their_place(content, fault, read):
    assert fault in faults(read, content)[0]


@pytest.mark.parametrize("content", ["", "\n", "\n\n \n", "\ufeff"])
def test_an_empty_file_is_refused(content, read):
    with pytest.raises(ScheduleError, match=r"schedule\.csv: the file is empty; a schedule has one row of actions per"):
        read(content)


@pytest.mark.parametrize("content", ['"0F0\n', '0F0,"0B0"x\n', '"' + "x" * 200_000 + '"\n'])
def test_broken_quotes_and_endless_cells_are_no_csv(content, read):
    with pytest.raises(ScheduleError, match=r"schedule\.csv: not a CSV file: "):
        read(content)


def test_a_file_that_is_not_utf_8_is_refused_with_the_byte(read):
    with pytest.raises(ConfigError, match=r"schedule\.csv: not a UTF-8 text file \(byte 4\)"):
        read(b"0F0,\xff\xfe\n")


@given(things.filter(lambda thing: not isinstance(thing, str)))
def test_any_thing_in_place_of_a_path_is_a_ppsim_error(path):
    with pytest.raises(PpsimError):
        Schedule.from_csv(path)
    with pytest.raises(PpsimError):
        ppsim.build("gpipe", devices=1, microbatches=1).to_csv(path)
