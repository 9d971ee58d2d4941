# SPDX-License-Identifier: MIT
"""cqnotify.check.rules: every rule has its texts, for any values."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cqnotify.check._wording import STATUSES, fill, status_name
from cqnotify.check.rules import ERROR, INFORMATION, RULES, WARNING, Rule, find_rule
from cqnotify.enums import WCStatus

VALUES: dict[str, dict[str, Any]] = {
    "lost-wakeup": {"cq": 1, "channel": 2, "completions": 1, "armed": "no", "call": "read"},
    "nothing-armed": {"channel": 1, "cqs": 2, "outstanding": 3, "call": "epoll_wait"},
    "over-ack": {"cq": 1, "events": 2, "acked": 3},
    "ack-on-wrong-cq": {"cq": 1, "events": 0, "acked": 1, "other": 2, "unacked": 1},
    "destroy-hangs": {"cq": 1, "events": 2, "acked": 1, "other": 3},
    "cq-overflow": {"cq": 1, "entries": 1},
    "cq-too-small": {"cq": 1, "entries": 15, "outstanding": 16},
    "full-unsignaled": {"qp": 1, "depth": 16},
    "mr-in-flight": {
        "mr": 1,
        "address": 4096,
        "length": 65536,
        "requests": 2,
        "wr_id": 7,
        "qp": 3,
    },
    "mr-unmapped": {"mr": 1, "address": 4096, "length": 1, "requests": 1, "call": "munmap"},
    "qp-destroyed": {"qp": 1, "cq": 2, "completions": 3},
    "not-polled-after-arm": {"cq": 1, "channel": 1, "outstanding": 1, "times": 5},
    "late-wakeup": {"cq": 1, "channel": 1, "completions": 2, "armed": "solicited", "times": 1},
    "solicited-only": {"cq": 1, "arms": 3, "completions": 4},
    "arm-per-poll": {"cq": 1, "arms": 100, "events": 1, "sleeps": 1},
    "async-unread": {"context": 1, "events": 2},
    "failed-completion": {"qp": 1, "cq": 1, "wr_id": 5, "status": 12, "vendor": 129, "flushed": 3},
    "wr-id-reused": {"qp": 1, "wr_id": 1, "queue": "send"},
    "spurious-events": {"cq": 1, "events": 4, "spurious": 2},
}


def test_these_are_the_rules() -> None:
    assert list(RULES) == list(VALUES)
    severities = [rule.severity for rule in RULES.values()]
    assert severities == [ERROR] * 11 + [WARNING] * 5 + [INFORMATION] * 3


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_a_rule_says_what_why_by_which_page_and_what_to_do(rule: Rule) -> None:
    said = rule.say(VALUES[rule.name])
    assert re.match(r"\w", said)
    assert said.endswith(".")
    assert "{" not in said
    assert "}" not in said
    texts = rule.texts_for(VALUES[rule.name])
    assert texts.why.endswith(".")
    assert texts.mend.endswith(".")
    assert all(page in rule_pages(rule) for page, _ in rule.texts.manual)
    assert rule.texts.manual
    assert all(text for _, text in rule.texts.manual)
    assert not rule.headline.endswith(".")


def rule_pages(rule: Rule) -> set[str]:
    return set(re.findall(r"ibv_\w+\(3\)", " ".join(rule.texts.cite())))


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
@pytest.mark.parametrize(
    "values",
    [{}, {"cq": None}, {"status": "x", "armed": []}, {"completions": {}, "call": 1}],
    ids=str,
)
def test_values_that_are_missing_or_wrong_are_no_error(rule: Rule, values: dict[str, Any]) -> None:
    assert rule.say(values)
    assert rule.texts_for(values)


def test_all_values_of_a_finding_are_said() -> None:
    said = RULES["failed-completion"].say(VALUES["failed-completion"])
    assert said == (
        "A work request of QP 1 failed: IBV_WC_RETRY_EXC_ERR, wr_id 5, vendor error 0x81, polled "
        "from CQ 1. 3 requests of the QP were flushed after it."
    )


def test_one_is_not_many() -> None:
    assert fill("{n:were} {m:were} {gone:were}", {"n": 1, "m": 2}) == "was were were"
    values = {"n": 1, "m": 2, "big": 20_000, "items": [3, 4]}
    assert fill("{n:n entry} {m:n entry} {big:n work request}", values) == (
        "1 entry 2 entries 20,000 work requests"
    )
    assert fill("{items:n CQ}, {gone:n poll}, {gone:CQ}, {n:CQ}, {m:hex}, {gone:hex}", values) == (
        "2 CQs, ? polls, CQ ?, CQ 1, 0x2, ?"
    )


@pytest.mark.parametrize("armed", ["before", "no", "solicited"])
def test_the_mend_is_that_of_what_the_cq_was(armed: str) -> None:
    rule = RULES["lost-wakeup"]
    others = {rule.texts_for({"armed": other}).mend for other in ("before", "no", "solicited")}
    assert len(others) == 3
    assert rule.texts_for({"armed": armed}) == rule.variants[armed]
    assert "armed" in rule.say({"armed": armed})


def test_a_rule_of_a_newer_observer_has_a_sentence() -> None:
    rule = find_rule("brand-{new}")
    assert rule.severity == WARNING
    assert (
        rule.say({})
        == "The observer found brand-new, which this version of cqnotify cannot explain."
    )
    assert rule.texts_for({"status": 12}).why == ""


def test_the_names_of_a_status_are_those_of_the_header() -> None:
    for status in WCStatus:
        assert STATUSES[status] == status.name
    assert status_name(5) == "IBV_WC_WR_FLUSH_ERR"
    assert status_name(99) == "status 99"
