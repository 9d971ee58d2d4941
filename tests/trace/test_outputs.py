# SPDX-License-Identifier: MIT
"""What is written: the page, the still picture, Chrome's trace."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from trace_support import Tape, many, race

from cqnotify.trace import Timeline, TraceError, build, chrome, page, picture, read
from cqnotify.trace.timeline import COUNTS, MARKS, SPANS
from cqnotify.trace.webpage import SHAPES

ROOT = Path(__file__).resolve().parents[2]
VOID = {"meta", "input", "rect", "path", "circle"}


def timeline_of(tape: Tape, folder: Path) -> Timeline:
    return build([tape.recording(folder)])


class Parsed(HTMLParser):
    """Counts the elements, and checks that each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.unlabelled = 0
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += attrs
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def data_of(text: str) -> dict[str, Any]:
    (packed,) = re.findall(r'id="data">([^<]*)<', text)
    data: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return data


# ---- the page -------------------------------------------------------------------------------


def test_the_page_is_whole_and_needs_no_network(tmp_path: Path) -> None:
    text = page(timeline_of(race(), tmp_path))
    parsed = Parsed(text)
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids))
    assert not {name for name, _ in parsed.attributes} & {"src", "href", "srcset", "action"}
    assert not re.search(r"https?:|url\(|@import|import\(|fetch\(|XMLHttp", text)
    assert parsed.elements["script"] == 2
    assert "prefers-color-scheme: dark" in text


def test_each_element_that_the_scripts_ask_for_is_there(tmp_path: Path) -> None:
    text = page(timeline_of(race(), tmp_path))
    asked = set(re.findall(r'\b(?:by|click)\("(\w+)"', text))
    assert asked
    assert asked <= set(Parsed(text).ids)


def test_each_colour_is_in_the_style_of_light_and_dark(tmp_path: Path) -> None:
    text = page(timeline_of(race(), tmp_path))
    for style in [*MARKS.values(), *SPANS.values(), *COUNTS.values()]:
        assert text.count(f" --{style.color}:") == 3, style.color
        assert style.shape in SHAPES


def test_the_data_is_that_of_the_timeline(tmp_path: Path) -> None:
    timeline = timeline_of(race(), tmp_path)
    data = data_of(page(timeline))
    assert data["duration"] == timeline.duration
    (process,) = data["processes"]
    for row, shown in zip(timeline.processes[0].rows, process["rows"], strict=True):
        assert (row.name, row.note) == (shown["name"], shown["note"])
        for lane, columns in zip(row.lanes, shown["lanes"], strict=True):
            times, kinds, texts, numbers = columns.get("marks", [[]] * 4)
            assert [mark.number for mark in lane.marks] == numbers
            assert [mark.kind for mark in lane.marks] == [data["marks"][kind][0] for kind in kinds]
            assert [mark.text for mark in lane.marks] == [data["texts"][text] for text in texts]
            assert [mark.time for mark in lane.marks] == sums(times)
            starts, lengths, kinds, texts = columns.get("spans", [[]] * 4)
            ends = [start + length for start, length in zip(sums(starts), lengths, strict=True)]
            assert [span.end for span in lane.spans] == ends
            assert [span.kind for span in lane.spans] == [data["spans"][kind][0] for kind in kinds]
            are_open = [index for index, span in enumerate(lane.spans) if span.open]
            assert columns.get("open", []) == are_open
            times, values = columns.get("steps", [[], []])
            assert [tuple(step) for step in lane.steps] == [*zip(sums(times), values, strict=True)]


def sums(differences: list[int]) -> list[int]:
    return [sum(differences[: index + 1]) for index in range(len(differences))]


def test_findings_are_buttons_and_the_longest_gaps_as_well(tmp_path: Path) -> None:
    parsed = Parsed(page(timeline_of(race(), tmp_path)))
    assert ("data-finding", "0,0") in parsed.attributes
    assert ("data-gap", "0,no event until polled") in parsed.attributes


def test_what_is_for_information_is_apart(tmp_path: Path) -> None:
    tape = Tape().arm().finding("wr-id-reused", qp=1, wr_id=0, queue="send")
    text = page(timeline_of(tape, tmp_path))
    assert "<summary>1 for information</summary>" in text
    assert "<h2>1 finding" not in text
    text = page(timeline_of(tape.finding("cq-overflow", entries=2), tmp_path))
    assert "<h2>1 finding</h2>" in text
    assert 'class="findings bad"' in text


def test_the_legend_has_the_kinds_that_there_are(tmp_path: Path) -> None:
    text = page(timeline_of(Tape().arm().poll(), tmp_path))
    (legend,) = re.findall(r'<ul class="legend".*?</ul>', text)
    shown = re.findall(r"</svg>(.*?)</li>", legend)
    assert shown == ["running", "armed", "arm", "poll, nothing there"]


def test_words_of_the_program_are_text_on_the_page(tmp_path: Path) -> None:
    tape = Tape(command="</script><script>alert('$version')").arm()
    tape.finding("<b>&")
    text = page(timeline_of(tape, tmp_path))
    parsed = Parsed(text)
    assert parsed.open == []
    assert parsed.elements["script"] == 2
    assert "&lt;/script&gt;&lt;script&gt;alert(&#x27;$version&#x27;)" in text


@pytest.mark.parametrize("number", [10, 100_000])
def test_elements_and_size_do_not_grow_with_the_records(tmp_path: Path, number: int) -> None:
    """The rows are drawn on a canvas, and the data is packed."""
    text = page(timeline_of(many(number), tmp_path))
    assert sum(Parsed(text).elements.values()) < 400
    assert len(text) < 100_000 + 20 * number


def test_elements_do_not_grow_with_the_findings(tmp_path: Path) -> None:
    tape = Tape().arm()
    for _ in range(1000):
        tape.finding("not-polled-after-arm", after=10)
    text = page(timeline_of(tape, tmp_path))
    assert "1,000 findings" in text
    assert "and 950 more" in text
    assert sum(Parsed(text).elements.values()) < 500


def test_each_process_has_its_figures(tmp_path: Path) -> None:
    Tape(20, "./server").arm().write(tmp_path)
    Tape(30, "./client").arm().write(tmp_path)
    text = page(build(read(tmp_path)))
    assert text.count('<section class="process">') == 2
    assert "2 processes, 2 records over" in text


# ---- the still picture ----------------------------------------------------------------------


def test_the_picture_is_svg_with_both_themes(tmp_path: Path) -> None:
    text = picture(timeline_of(race(), tmp_path))
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    words = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"thread 4711", "CQ 1", "QP 1", "asleep", "lost-wakeup", "1.25 us"} <= words
    assert "prefers-color-scheme: dark" in text


def test_the_picture_of_the_page_is_the_one_that_is_made(tmp_path: Path) -> None:
    """If not: python tests/trace/trace_support.py F, cqnotify trace --from F -o docs/trace.svg"""
    assert (ROOT / "docs/trace.svg").read_text() == picture(timeline_of(race(), tmp_path))


def test_a_picture_of_too_many_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"up to 400 marks, and this .* write a page"):
        picture(timeline_of(many(1000), tmp_path))


def test_a_picture_of_one_record(tmp_path: Path) -> None:
    ElementTree.fromstring(picture(timeline_of(Tape(command="<&>").arm(), tmp_path)))


# ---- Chrome's trace -------------------------------------------------------------------------


def test_the_trace_for_perfetto_has_a_track_for_each_lane(tmp_path: Path) -> None:
    timeline = timeline_of(race(), tmp_path)
    trace = json.loads(json.dumps(chrome(timeline)))
    events = trace["traceEvents"]
    names = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    lanes = [(row, lane) for row in timeline.processes[0].rows for lane in row.lanes]
    drawn = [f"{row.name}: {lane.label}" for row, lane in lanes if lane.spans or lane.marks]
    assert list(names.values()) == drawn
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == sum(len(lane.spans) for _, lane in lanes)
    asleep = [event for event in spans if event["name"] == "asleep"]
    assert [(event["ts"], event["dur"]) for event in asleep] == [(7, 20), (31.75, 14), (53, 24.8)]
    assert {names[event["tid"]] for event in asleep} == {"thread 4711: state"}
    marks = [event for event in events if event["ph"] == "i" and event["s"] == "t"]
    assert len(marks) == sum(len(lane.marks) for _, lane in lanes)
    counters = [event for event in events if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"CQ 1: waiting", "QP 1: receives"}
    (finding,) = [event for event in events if event["ph"] == "i" and event["s"] == "g"]
    assert finding["name"].startswith("lost-wakeup")


def test_tracks_of_several_processes_are_apart(tmp_path: Path) -> None:
    for number in (1, 2):
        Tape(20).arm().write(tmp_path, number=number)
    events = chrome(build(read(tmp_path)))["traceEvents"]
    tracks = [event["tid"] for event in events if event["name"] == "thread_name"]
    assert len(tracks) == len(set(tracks)) == 6
