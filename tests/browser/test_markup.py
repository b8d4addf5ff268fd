"""Names with markup in a real Chromium: the viewer and the explorer show them as text, and execute nothing."""

import json
import random
import re
from urllib.parse import quote

from pages import page_of

import ppsim
from tests.fuzz.cases import COUNTS, EXAMPLES

RUN = "window.executed=1"
NAMES = [
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"\"'><svg onload={RUN}>",
    f"</title></style></textarea><body onload={RUN}>",
    f"<!--<script>{RUN}//",
    "a & b &lt; &amp; &#60;",
    "\u202egnp.elif\u202c \u2066ltr\u2069 \u200f",
    "תזמון جدول",
    "🚀 👩‍👩‍👧 e\u0301",
    "@SCRIPT@ @CHARTS@ @TITLE@",
    f"`${{{RUN}}}` \\u003cscript> %3Cscript%3E",
    "]]> <?php {{7*7}} \x1b[31m",
]
PIECES = [*"<>\"'&/=`\\; ", "script", "img src=x ", f" onerror={RUN} ", "svg ", f" onload={RUN} ", "</", "<!--", "-->",
          "&lt;", "\u202e", "\u2067", "\u2028", "😀", "ש", "@STYLE@", "$&", "$'", RUN, "javascript:", "\t"]  # fmt: skip
generator = random.Random(0)  # noqa: S311 - names
NAMES += ["".join(generator.choices(PIECES, k=8)) for _ in range(max(2, EXAMPLES // 10))]
ORDERS = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
CSV = "\n".join(map(",".join, ORDERS))


def run_of(name):
    return ppsim.simulate(ppsim.Schedule.from_orders(ORDERS, name=name))


def visible(text):
    """The text with control and direction characters escaped, as charts show them."""
    return re.sub("[\x1b\u200f\u2028\u202c\u202e\u2066\u2067\u2069]", lambda found: f"\\u{ord(found[0]):04x}", text)


def collapsed(text):
    """The text as a title shows it."""
    return " ".join(text.split())


def assert_nothing_was_executed(page, what):
    assert page.run("return typeof window.executed") == "undefined", what
    assert page.run("return document.querySelectorAll('img, svg, [onload], [onerror]').length") == 0, what
    COUNTS[f"names with markup: {what}"]["answers"] += 1


def test_the_viewer_shows_names_as_text(page, tmp_path):
    path = tmp_path / "chart.html"
    for name in NAMES:
        path.write_text(page_of(run_of(name), run_of("1f1b")), encoding="utf-8")
        page.open(path.as_uri())
        shown = f"{visible(name)}, 2 devices"
        assert page.find(".viewer canvas").get_attribute("aria-label").startswith(shown)
        assert page.run("return document.title") == "2 devices, 2 microbatches"
        page.keys(".viewer input[type=search]", "1F1")
        assert page.text(".selection").startswith(f"1 of 2: {visible(name)} · 1F1")
        assert_nothing_was_executed(page, "viewer")


def show(page, address, state, script, name):
    """Give the explorer's page a state by its address, which an open page reads again; wait for the name."""
    if page.run("return location.href").startswith(address):
        page.run("location.hash = arguments[0]", quote(json.dumps(state)))
    else:
        page.browser.get(address + "#" + quote(json.dumps(state)))
    is_done = "typeof runs !== 'undefined' && runs.length > 0 && runs.every((run) => run.result && !run.flight)"
    page.until(f"return {is_done} && {script} === arguments[0]", name)


def test_the_explorer_shows_the_names_of_files_and_faulty_values_as_text(page, explorer):
    for name in NAMES:
        schedules = [{"csv": CSV, "name": name}, {"csv": "0F0", "name": name}, {"schedule": name}]
        state = {"common": {"devices": 2, "microbatches": 2}, "schedules": schedules}
        show(page, explorer, state, "document.querySelector('#cards .card b')?.textContent", name)
        page.until("return document.documentElement.dataset.drawn")
        assert page.find(".viewer canvas").get_attribute("aria-label").startswith(f"{name}, 2 devices")
        assert page.text("#lines").count("his ppsim knows no schedule of this name") == 1
        assert page.run("return document.querySelector('#cards .card b').textContent") == name
        page.run("showCopies(); [...find('copies').querySelectorAll('button')][2].click()")
        heads = page.run("return document.querySelector('#copied tr').textContent")
        assert heads == f"measure{name}definition".replace("\t", "")
        assert_nothing_was_executed(page, "explorer")


def test_the_explorer_shows_configs_with_such_names_and_values_as_text(page, serve, tmp_path):
    names = [name for name in NAMES if "/" not in name and "\x1b" not in name]
    for name in names:
        config = {"name": name, "schedule": {"name": "1f1b", "devices": 2, "microbatches": 2}}
        model = {"hardware": {"device": {"like": "H100 SXM", "source": name}, "link": "NVLink 4"}}
        layers = {"model": {"num_layers": 8, "hidden": 64, "heads": 4, "ffn": 64, "sequence": 64, "vocabulary": 64}}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(config | model | layers), encoding="utf-8")
    with serve(*sorted(tmp_path.iterdir())) as address:
        for name in names:
            state = {
                "common": {"config": name, "forward": name, "changes": {"layout.recompute": name}},
                "schedules": [{}],
            }
            show(page, address, state, "state.common.config", name)
            assert name in page.run("return [...document.querySelectorAll('option')].map((one) => one.value)")
            assert page.run(
                "return [...document.querySelectorAll('input')].some((one) => one.value === arguments[0])", name
            )
            assert_nothing_was_executed(page, "explorer's configs")
