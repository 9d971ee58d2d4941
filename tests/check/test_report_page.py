# SPDX-License-Identifier: MIT
"""docs/check.md says what the rules and the command say."""

from __future__ import annotations

import re

import pytest
from doc_support import DOCS
from rules_page import page_section

from cqnotify.cli import MISUSE, main

PAGE = (DOCS / "check.md").read_text()


def test_the_rules_are_those_of_the_page() -> None:
    """`python tests/check/rules_page.py` prints what belongs there."""
    assert PAGE.partition("<!-- rules -->\n")[2].partition("<!-- end -->")[0] == page_section()


def test_the_options_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    said = capsys.readouterr().out
    told = set(re.findall(r"`(--?[a-z-]+)[ `]", PAGE)) | {"--print-env"}
    assert set(re.findall(r"(?<![\w-])--[a-z-]+\b", said)) - {"--help", "--verbose"} <= told
    assert f"{MISUSE} if there is an error" in PAGE


def test_the_example_is_what_the_command_prints_of_such_a_finding() -> None:
    (example,) = re.findall(r"```text\n(cqnotify check: error: .*?)```", PAGE, re.S)
    assert "[lost-wakeup]" in example
    assert re.search(r"^    await_message +\S+\.c:\d+$", example, re.M)
    assert re.search(r"^cqnotify check: 1 error, 0 warnings; 1 process", example, re.M)
