"""The live page of the site: every picture of a timeline leads to it."""

import re

import make_live_page
from command_line import ROOT

DOCS = ROOT / "docs"
SHOWN = {
    picture
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
    for picture in re.findall(r"!\[[^]]*\]\([^)]*images/([^)]*)\)", page.read_text(encoding="utf-8"))
}
MANY_RUNS = {"accuracy-classes", "accuracy-intervals", "advice", "front", "growth", "regret", "sweep"}


def test_every_picture_of_a_timeline_opens_in_the_live_page():
    without = {picture for picture in SHOWN if make_live_page.address(picture) is None}
    assert {re.sub(r".*/|(-\d+)?(-(light|dark|grey))?\.\w+$", "", picture) for picture in without} == MANY_RUNS
    named = {re.sub("&.*", "", make_live_page.address(picture)) for picture in SHOWN - without}
    assert named >= {"chart=slots-4", "chart=comparison-64", "schedules=zb-h1", "schedules=1f1b,zb-h1,dualpipe"}
