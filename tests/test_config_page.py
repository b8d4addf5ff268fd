"""Pages name every key that a config can have and every effect of costs, and nothing else."""

import re

import make_cost_docs
import pytest
from command_line import ROOT
from pydantic import BaseModel

from ppsim.config import FILE_KEYS, ConfigSource, load_config
from ppsim.config.schema import DOCUMENT, check_sections, named_files
from ppsim.costs import EFFECTS, PARAMETERS

PAGE = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")


def keys_of(section: type[BaseModel]):
    for key, entry in section.model_fields.items():
        yield key
        if isinstance(entry.annotation, type) and issubclass(entry.annotation, BaseModel):
            yield from keys_of(entry.annotation)


def first_cells():
    return {
        key
        for line in PAGE.splitlines()
        if line.startswith("| `")
        for key in re.findall(r"`(\w+)`", line.split(" | ")[0])
    }


def test_the_page_has_every_key_and_no_other():
    assert first_cells() == set(keys_of(DOCUMENT))


@pytest.mark.parametrize("name", make_cost_docs.PAGES)
def test_the_tables_of_a_page_are_those_of_the_declarations(name):
    page = (make_cost_docs.DOCS / name).read_text(encoding="utf-8")
    assert make_cost_docs.refreshed(page) == page, f"docs/{name} is out of date; run `make docs`"
    assert make_cost_docs.refreshed(page.replace("| `tensor` |", "| `tensors` |").replace("| `tail` |", "| |")) == page


def test_the_sheets_of_the_page_are_read(tmp_path):
    text = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]
    path = tmp_path / "page.yaml"
    path.write_text(
        "model: {num_layers: 4, hidden: 64, heads: 4, vocabulary: 100, sequence: 32}\n"
        "schedule: {name: 1f1b, devices: 2, microbatches: 4}\noptimizer: sync\n" + text
    )
    config = load_config(path)
    assert config.costs.cluster.network.bandwidth == 12.5e9
    assert config.simulate().makespan > 0


def test_all_keys_that_name_a_file_are_known_as_such():
    hardware = {"device": "H100", "link": "NVLink 4"}
    sections = {"schedule": {}, "hardware": hardware, "lengths": {"sequences": 1}}
    changed = ConfigSource(sections, "config").changed(dict.fromkeys(FILE_KEYS, "a file"))
    checked, faults = check_sections(dict(changed.data))
    assert not faults
    assert {".".join(map(str, path)) for path in named_files(checked)} == set(FILE_KEYS)


def test_every_effect_has_a_row_on_the_page_and_names_a_key_of_the_config_or_a_cost():
    page = (ROOT / "docs" / "cost-model.md").read_text(encoding="utf-8")
    for effect in EFFECTS:
        assert f"\n| {', '.join(f'`{key}`' for key in effect.key.split(', '))} |" in page
        for key in effect.key.split(", "):
            section, _, name = key.rpartition(".")
            assert name in (set(keys_of(DOCUMENT.model_fields[section].annotation)) if section else PARAMETERS), key
