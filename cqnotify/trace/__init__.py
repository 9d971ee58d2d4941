# SPDX-License-Identifier: MIT
"""Timelines of a verbs program: reads what the observer recorded, and shows it.

recordings = read(folder)              # records.py: the files
summarize(recordings[0])               # gaps.py, summary.py: the figures
timeline = build(recordings)           # timeline.py, outstanding.py: the rows of a picture
page(timeline), picture(timeline)      # webpage.py, web/, picture.py: for a browser, for a page
chrome(timeline)                       # chrome.py: for Perfetto
"""

from .chrome import chrome
from .gaps import Analysis, Counts, Gap, GapKind, analyse
from .picture import picture
from .records import Finding, NoRecordsError, Record, Recording, TraceError, What, read, read_file
from .summary import Summary, format_summary, summarize
from .timeline import Timeline, build
from .webpage import page

__all__ = [
    "Analysis",
    "Counts",
    "Finding",
    "Gap",
    "GapKind",
    "NoRecordsError",
    "Record",
    "Recording",
    "Summary",
    "Timeline",
    "TraceError",
    "What",
    "analyse",
    "build",
    "chrome",
    "format_summary",
    "page",
    "picture",
    "read",
    "read_file",
    "summarize",
]
