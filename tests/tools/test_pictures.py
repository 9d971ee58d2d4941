# SPDX-License-Identifier: MIT
"""The pictures of docs/: each is what its script draws, fits into its frame, and is true."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from doc_support import DOCS, PAGES
from support import Endpoint, python, until, wait_completions

from cqnotify import QP, Context, QPState, QPType, VerbsError, WROpcode, cm
from cqnotify.messages import ConnectionOptions

SVG = "{http://www.w3.org/2000/svg}"
SHOWN = 400  # pixels, of the width in which a picture has to be legible
SMALLEST = 12  # pixels of a font there
# The width of a letter and the height of a line, in pixels of the picture; a little more than
# what DejaVu Sans needs, which is wider than most.
SANS, BOLD, MONO, HIGH = 7.7, 8.3, 7.9, 13

SCRIPTS = [path for path in sorted(DOCS.glob("*.py")) if "from drawing import" in path.read_text()]
each_picture = pytest.mark.parametrize(
    "svg", [path.with_suffix(".svg") for path in SCRIPTS], ids=lambda path: path.stem
)


def texts(svg: Path) -> list[ElementTree.Element]:
    return [*ElementTree.parse(svg).getroot().iter(f"{SVG}text")]


def words(svg: Path) -> str:
    return "\n".join("".join(element.itertext()) for element in texts(svg))


def place(element: ElementTree.Element) -> tuple[float, float, float, float]:
    """About where a text is: left, top, right, bottom."""
    kinds = element.get("class", "").split()
    letter = BOLD if "head" in kinds else SANS
    coded = sum(len(part.text or "") for part in element)
    width = letter * (len("".join(element.itertext())) - coded) + MONO * coded
    x, y = float(element.get("x", "")), float(element.get("y", ""))
    left = x - width * ("end" in kinds) - width / 2 * ("middle" in kinds)
    return left, y - HIGH + 2, left + width, y + 2


def test_every_picture_has_a_script() -> None:
    drawn = {path.with_suffix(".svg").name for path in SCRIPTS}
    assert {path.name for path in DOCS.glob("*.svg")} - drawn == {"trace.svg"}  # test_outputs.py
    assert len(drawn) > 7


@each_picture
def test_a_picture_is_what_its_script_draws(svg: Path) -> None:
    """If not: python docs/NAME.py >docs/NAME.svg"""
    done = python(str(svg.with_suffix(".py")))
    assert done.stderr == ""
    assert svg.read_text() == done.stdout


@each_picture
def test_a_picture_says_what_it_shows(svg: Path) -> None:
    root = ElementTree.parse(svg).getroot()
    for name in ("title", "desc"):
        element = root.find(f"{SVG}{name}")
        assert element is not None
        assert element.text
        assert element.get("id") in root.get("aria-labelledby", "").split()
    shown = [page.read_text() for page in PAGES.values()]
    assert any(re.search(rf"!\[[^]]{{40,}}\]\({svg.name}\)", page) for page in shown)


@each_picture
def test_all_kinds_of_parts_have_colors_in_both_schemes(svg: Path) -> None:
    light, _, dark = svg.read_text().partition("@media (prefers-color-scheme: dark)")
    root = ElementTree.parse(svg).getroot()
    for element in root.iter():
        for kind in element.get("class", "").split():
            assert re.search(rf"\.{kind}\b[^{{]*\{{", light), kind
            colored = re.search(rf"\.{kind}\b[^{{]*\{{[^}}]*#", light)
            assert not colored or re.search(rf"\.{kind}\b[^{{]*\{{[^}}]*#", dark), kind
    assert "text {" in light
    assert "text {" in dark
    assert not re.search(r"url\(|@import|@font-face|href", svg.read_text())


@each_picture
def test_the_text_of_a_picture_is_legible_and_within_its_frame(svg: Path) -> None:
    root = ElementTree.parse(svg).getroot()
    _, _, width, height = map(float, root.get("viewBox", "").split())
    sizes = re.findall(r"font-size: ([\d.]+)px", svg.read_text())
    assert sizes
    assert min(map(float, sizes)) * SHOWN / width >= SMALLEST
    for element in texts(svg):
        left, top, right, bottom = place(element)
        inside = left >= 6 and right <= width - 6 and top >= 6 and bottom <= height - 6
        assert inside, "".join(element.itertext())


@each_picture
def test_no_text_of_a_picture_lies_over_another(svg: Path) -> None:
    for one, other in itertools.combinations(texts(svg), 2):
        a, b = place(one), place(other)
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, ("".join(one.itertext()), "".join(other.itertext()))


@each_picture
def test_the_text_in_a_box_fits_into_it(svg: Path) -> None:
    for rect in ElementTree.parse(svg).getroot().iter(f"{SVG}rect"):
        x, y, width, height = (float(rect.get(name, "")) for name in ("x", "y", "width", "height"))
        for element in texts(svg):
            left, top, right, bottom = place(element)
            if x < (left + right) / 2 < x + width and y < (top + bottom) / 2 < y + height:
                fits = x <= left and right <= x + width and y <= top and bottom <= y + height
                assert fits, "".join(element.itertext())


# ---- what they show is true ---------------------------------------------------------------------


def test_the_states_of_the_picture_are_all_that_there_are() -> None:
    shown = words(DOCS / "states.svg")
    states = {state.name for state in QPState} - {"UNKNOWN"}
    assert set(re.findall(r"^[A-Z]+$", shown, re.M)) == states
    assert set(re.findall(r"QPState\.(\w+)", shown)) <= states
    calls = re.findall(r"(\w+)\(", shown)
    assert {"to_init", "to_rtr", "to_rts", "connect", "modify"} == set(calls) - {"RC", "UC"}
    assert all(callable(getattr(QP, call)) for call in calls)


def takes(end: Endpoint) -> tuple[bool, bool]:
    """Whether its QP takes a receive, and a send."""
    taken = []
    for post in (end.qp.post_recv, end.qp.post_send):
        try:
            post(end.mr[:8], wr_id=1)
        except VerbsError as e:
            taken.append("and needs" not in str(e))  # another state
        else:
            taken.append(True)
    return taken[0], taken[1]


@pytest.mark.not_on_iwarp("its QPs are connected by rdma_cm only")
def test_the_calls_of_the_picture_lead_to_its_states(ctx: Context) -> None:
    a, b = Endpoint(ctx, QPType.RC), Endpoint(ctx, QPType.RC)
    assert (a.qp.state, takes(a)) == (QPState.RESET, (False, False))
    a.qp.to_init()
    assert (a.qp.state, takes(a)) == (QPState.INIT, (True, False))
    a.qp.to_rtr(b.qp.address())
    assert (a.qp.state, takes(a)) == (QPState.RTR, (True, False))
    a.qp.to_rts()
    assert a.qp.state == QPState.RTS
    b.qp.connect(a.qp.address())
    assert b.qp.state == QPState.RTS
    a.qp.modify(qp_state=QPState.SQD)
    assert (a.qp.state, takes(a)) == (QPState.SQD, (True, True))
    assert a.qp.outstanding_sends == 1  # the send waits
    b.qp.post_recv(b.mr)
    until(lambda: not a.qp.query().sq_draining, "it is drained")
    a.qp.modify(qp_state=QPState.RTS)
    a.qp.post_send(a.mr[:8], opcode=WROpcode.RDMA_WRITE, remote_addr=b.mr.addr, rkey=b.mr.rkey ^ 1)
    # Soft-RoCE carries out the send that waited with the next one; that fails.
    assert [wc.ok for wc in wait_completions(a.scq, 2)] == [True, False]
    assert a.qp.state == QPState.ERR
    a.qp.modify(qp_state=QPState.RESET)
    assert (a.qp.state, a.qp.outstanding_sends, a.qp.outstanding_recvs) == (QPState.RESET, 0, 0)


def test_the_connection_of_the_picture_has_events_and_calls_that_there_are() -> None:
    shown = words(DOCS / "connecting.svg")
    events = set(re.findall(r"\b[A-Z]+_[A-Z]+\b|DISCONNECTED|ESTABLISHED", shown))
    assert len(events) == 6
    assert events <= {event.name for event in cm.CMEventType}
    for owner, name in re.findall(r"\b(cm|request|conn)\.(\w+)\(", shown):
        thing = {"cm": cm, "request": cm.Request, "conn": cm.Connection}[owner]
        assert callable(getattr(thing, name)), name


def test_the_size_of_the_picture_of_messages_is_the_default() -> None:
    assert f"{ConnectionOptions().eager >> 10} KiB (eager)" in words(DOCS / "copied_or_read.svg")


def test_the_bars_are_those_of_the_three_libraries() -> None:
    root = ElementTree.parse(DOCS / "performance.svg").getroot()
    kinds = [element.get("class") for element in root.iter(f"{SVG}rect")]
    counts = {kinds.count(f"{color}-fill") for color in ("blue", "amber", "way")}
    assert len(counts) == 1
    assert counts.pop() > 4
