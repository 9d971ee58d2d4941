# SPDX-License-Identifier: MIT
"""Timeline files: what is read of them, and what is said of those that cannot be read."""

from __future__ import annotations

import subprocess
from pathlib import Path
from textwrap import dedent

import pytest
from trace_support import LOST, PID, REALTIME, START, Tape, many, patch, race, shorten

from cqnotify.trace import Finding, TraceError, What, build, read, read_file
from cqnotify.trace.records import Call, Flag, Record, program_number

CSRC = Path(__file__).resolve().parents[2] / "csrc"


def test_a_file_is_read_with_its_header_and_all_fields_of_its_records(tmp_path: Path) -> None:
    tape = Tape(command="./a.out -e")
    tape.tid = 4712
    values = {"flags": 4, "other": 5, "value": 6 << 40, "number": 7, "detail": 8, "caller": 9 << 40}
    tape.add(What.COMPLETION, 3, after=17, **values)
    recording = tape.recording(tmp_path)
    assert (recording.pid, recording.command) == (PID, "./a.out -e")
    assert recording.clock_offset == REALTIME - START
    assert (recording.start, recording.end) == (START + 17, START + 17)
    assert recording.records == [
        Record(START + 17, 4712, What.COMPLETION, 4, 3, 5, 6 << 40, 7, 8, 9 << 40)
    ]
    assert (recording.lost, recording.unfinished, recording.unknown) == (0, 0, 0)


WRITER = """\
#include <stdio.h>
#include <string.h>
#include "check/record.h"

_Static_assert(sizeof(struct timeline_header) == 4096, "one page");

int main(int argc, char **argv)
{
    struct timeline_header header = {.header_size = sizeof(header),
        .record_size = sizeof(struct record),
        .capacity = 4, .written = 3, .monotonic = 1000, .realtime = 5000, .pid = 77,
        .completions = 2, .completed = 3};
    memcpy(header.magic, RECORD_MAGIC, 8);
    strcpy(header.command, "./a.out in C");
    struct record ring[4] = {
        {.time = 2000, .tid = 78, .what = RECORD_SLEEP, .flags = RECORD_SEEN, .object = 1,
         .other = 2, .value = 1ull << 60, .number = 3, .detail = CALL_EPOLL_WAIT,
         .caller = 0x7f0000001234},
        {.time = 3000, .tid = 78, .what = RECORD_WAKE, .object = 1},
        {.time = 4000, .tid = 78, .what = RECORD_POLL, .flags = RECORD_WITH_COMPLETIONS,
         .object = 5, .other = 6, .value = 1, .number = 2, .detail = 16, .caller = 99},
    };
    struct completion completions[2] = {
        {.wr_id = 1ull << 61, .length = 8, .opcode = 129}, /* number 2 is where number 0 was */
        {.wr_id = 7, .length = 1u << 31, .opcode = 128},
    };
    FILE *file = fopen(argv[1], "wb");
    fwrite(&header, sizeof(header), 1, file);
    fwrite(ring, sizeof(ring), 1, file);
    fwrite(completions, sizeof(completions), 1, file);
    return argc != 2 || fclose(file);
}
"""


def compiled(tmp_path: Path, source: str) -> Path:
    (tmp_path / "it.c").write_text(source)
    out = tmp_path / "it"
    flags = ["-std=c11", "-Wall", "-Werror", f"-I{CSRC}"]
    subprocess.run(["gcc", *flags, tmp_path / "it.c", "-o", out], check=True)
    return out


def test_a_file_that_a_c_program_wrote_by_the_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "77.1.timeline"
    subprocess.run([compiled(tmp_path, WRITER), path], check=True)
    recording = read_file(path)
    assert (recording.pid, recording.command) == (77, "./a.out in C")
    assert recording.clock_offset == 4000
    detail, caller = int(Call.EPOLL_WAIT), 0x7F0000001234
    assert recording.records == [
        Record(2000, 78, What.SLEEP, Flag.SEEN, 1, 2, 1 << 60, 3, detail, caller),
        Record(3000, 78, What.WAKE, 0, 1, 0, 0, 0, 0, 0),
        Record(4000, 78, What.COMPLETION, 0, 5, 6, 7, 1 << 31, 128, 0),
        Record(4000, 78, What.COMPLETION, 0, 5, 6, 1 << 61, 8, 129, 0),
        Record(4000, 78, What.POLL, 0, 5, 0, 0, 2, 16, 99),
    ]


def test_all_kinds_calls_and_flags_have_the_values_of_the_header(tmp_path: Path) -> None:
    enums = {"RECORD": [*What, *Flag], "CALL": [*Call]}
    names = [(f"{prefix}_{member.name}", member) for prefix in enums for member in enums[prefix]]
    checks = "".join(f'_Static_assert({name} == {value:d}, "{name}");\n' for name, value in names)
    compiled(tmp_path, f'#include "check/record.h"\n{checks}int main(void) {{ return 0; }}\n')
    text = (CSRC / "check/record.h").read_text()
    for line in dedent(text).splitlines():
        word = line.strip().split(" ")[0].rstrip(",")
        if word.startswith(("RECORD_", "CALL_")):
            assert word in dict(names), word


def test_of_a_ring_that_wrapped_the_last_records_are_read_in_their_order(tmp_path: Path) -> None:
    tape = Tape()
    for wr_id in range(10):
        tape.post_recv(wr_id)
    recording = read_file(tape.write(tmp_path, capacity=4))
    assert [record.value for record in recording.records] == [6, 7, 8, 9]
    assert recording.lost == 6
    assert read_file(tape.write(tmp_path, capacity=10)).lost == 0


def test_a_ring_that_is_not_full_has_the_records_that_were_written(tmp_path: Path) -> None:
    recording = read_file(Tape().post_recv(1).post_recv(2).write(tmp_path, capacity=1000))
    assert [record.value for record in recording.records] == [1, 2]


def test_a_poll_has_its_completions_before_it_whichever_way_they_were_written(
    tmp_path: Path,
) -> None:
    apart = Tape().create().post_recv(1).post_recv(2).poll(1, 2).arm()
    together = Tape().create().post_recv(1).post_recv(2).poll_run(1, 2).arm()
    assert together.recording(tmp_path).records == apart.recording(tmp_path).records


def test_polls_whose_completions_were_overwritten_are_lost_and_what_was_before_them(
    tmp_path: Path,
) -> None:
    tape = Tape().post_recv(1).poll_run(1, 2, 3).post_recv(4).poll_run(4, 5).poll_run(6, 7)
    recording = read_file(tape.write(tmp_path, completions=4))
    assert recording.lost == 2
    found = [(What(record.what), record.value) for record in recording.records]
    polled = [(What.COMPLETION, 4), (What.COMPLETION, 5), (What.POLL, 0)]
    assert found[:4] == [(What.POST_RECV, 4), *polled]
    assert [value for what, value in found if what == What.COMPLETION] == [4, 5, 6, 7]
    assert read_file(tape.write(tmp_path, completions=8)).lost == 0


def test_records_that_were_never_finished_or_came_later_are_counted_and_left_out(
    tmp_path: Path,
) -> None:
    tape = Tape().post_recv(1).add(0).add(200, value=5).post_recv(2)
    recording = tape.recording(tmp_path)
    assert [record.value for record in recording.records] == [1, 2]
    assert (recording.unfinished, recording.unknown) == (1, 1)


def test_records_of_several_threads_are_ordered_by_time(tmp_path: Path) -> None:
    tape = Tape().post_recv(1, after=500)
    tape.tid += 1
    tape.post_recv(2, after=-100)
    assert [record.value for record in tape.recording(tmp_path).records] == [2, 1]


def test_a_folder_has_a_timeline_of_each_process_and_program(tmp_path: Path) -> None:
    Tape(20, start=START + 50).post_recv(1).write(tmp_path)
    Tape(10, start=START + 90).post_recv(1).write(tmp_path, number=2)
    Tape(10, start=START).post_recv(1).write(tmp_path)
    read_all = read(tmp_path)
    assert [(r.pid, program_number(r.path)) for r in read_all] == [(10, 1), (20, 1), (10, 2)]
    assert program_number(tmp_path / "other.timeline") == 0


# ---- the log beside it ----------------------------------------------------------------------


def test_findings_are_those_of_the_log_in_the_words_of_the_rules(tmp_path: Path) -> None:
    recording = race().recording(tmp_path)
    *_, sleep = [record for record in recording.records if record.what == What.SLEEP]
    assert recording.findings == [Finding(sleep.time, PID, 1, LOST, "error")]


def test_a_finding_that_comes_again_has_the_first_time_and_the_last_values(tmp_path: Path) -> None:
    tape = Tape().post_recv(1).finding("cq-overflow", entries=1)
    first = START + tape.now
    tape.now += 500
    values = {"cq": 3, "entries": 77}
    tape.say("finding", rule="cq-overflow", number=1, tid=9, values=values)
    (finding,) = tape.recording(tmp_path).findings
    assert (finding.time, finding.tid, finding.cq) == (first, 9, 3)
    assert "77 entries" in finding.text


def test_a_finding_that_was_withdrawn_is_none(tmp_path: Path) -> None:
    tape = race()
    tape.say("withdrawn", number=1)
    assert tape.recording(tmp_path).findings == []


def test_without_a_log_a_finding_has_its_number(tmp_path: Path) -> None:
    path = race().write(tmp_path)
    path.with_suffix(".log").unlink()
    (finding,) = read_file(path).findings
    assert (finding.cq, finding.text) == (1, "finding 1: see the log")


def test_the_log_may_know_a_later_end_and_its_last_line_may_be_incomplete(tmp_path: Path) -> None:
    tape = race()
    path = tape.write(tmp_path)
    log = path.with_suffix(".log")
    log.write_text(log.read_text() + '[1]\n{"kind": "finding", "number": 2}\n{"kind": "cou')
    recording = read_file(path)
    assert recording.end == START + tape.now > recording.records[-1].time
    assert len(recording.findings) == 1


def test_a_process_that_did_not_note_its_end_ended_with_the_program(tmp_path: Path) -> None:
    path = Tape().post_recv(1).write(tmp_path)
    assert read_file(path, START + 9000).end == START + 9000
    whole = race()
    assert read_file(whole.write(tmp_path), START + 10**9).end == START + whole.now


# ---- what cannot be read --------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as e:
        read(path)
    return str(e.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none.timeline"
    assert refusal(path) == f"cannot read {path}: No such file or directory"


def test_a_folder_without_timelines(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path} has no timeline: no file named *.timeline"


def test_a_program_without_verbs(tmp_path: Path) -> None:
    Tape().write(tmp_path)
    assert refusal(tmp_path) == f"{tmp_path} has no records: the program used no verbs"


@pytest.mark.parametrize("content", [b"", b"cqntim", b"\x7fELF" * 2000, b"cqntime1" + bytes(5000)])
def test_a_file_of_another_kind(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "1.1.timeline"
    path.write_bytes(content)
    assert refusal(path) == f"{path} is not a timeline: it does not begin with cqntime2"


def test_a_truncated_file(tmp_path: Path) -> None:
    path = many(100).write(tmp_path)
    shorten(path, 4096 + 48 * 70 + 47)
    assert refusal(path) == f"{path} is truncated: it has 70 of 100 records"
    whole = Tape().poll_run(*range(40)).write(tmp_path, number=2)
    shorten(whole, 4096 + 48 + 16 * 30 + 15)
    assert refusal(whole) == f"{whole} is truncated: it has 30 of 40 completions"
    shorten(path, 4090)
    assert refusal(path) == f"{path} is truncated: it has 0 of 100 records"
    shorten(path, 50)
    assert refusal(path) == f"{path} is truncated: 50 bytes, which is less than its header"


@pytest.mark.parametrize(
    ("offset", "layout", "value", "said"),
    [
        (8, "<I", 40, "a header of 40 bytes, 100 records of 48"),
        (12, "<I", 56, "a header of 4096 bytes, 100 records of 56"),
        (16, "<Q", 0, "a header of 4096 bytes, 0 records of 48"),
    ],
)
def test_another_layout(tmp_path: Path, offset: int, layout: str, value: int, said: str) -> None:
    path = many(100).write(tmp_path)
    patch(path, offset, layout, value)
    assert refusal(path) == f"{path} has another layout: {said}; this version reads records of 48"


def test_a_damaged_byte_is_read_or_refused(tmp_path: Path) -> None:
    """Whichever it is, nothing but TraceError comes of it."""
    path = race().write(tmp_path)
    whole = path.read_bytes()
    refused = 0
    for offset in [*range(60), *range(4096, 4096 + 48 * 27, 2)]:
        path.write_bytes(whole)
        patch(path, offset, "<B", whole[offset] ^ 0xFF)
        try:
            assert build(read(path)).processes
        except TraceError:
            refused += 1
    assert refused
