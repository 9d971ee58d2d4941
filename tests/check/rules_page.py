# SPDX-License-Identifier: MIT
"""The rules of `cqnotify check` as the section of docs/check.md; as a program it prints them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cqnotify.check.rules import ERROR, INFORMATION, RULES, WARNING, Rule, Texts

HEADINGS: Final = {
    ERROR: "Errors",
    WARNING: "Warnings",
    INFORMATION: "Information",
}


LABELS: Final = {
    "before": "If the CQ was armed after the completions came: ",
    "no": "If the CQ is not armed: ",
    "solicited": "If the CQ is armed for solicited completions only: ",
}


def page_section() -> str:
    """Return the rules as Markdown. A rule that is explained as an earlier one refers to that."""
    lines: list[str] = []
    earlier: dict[tuple[str, ...], str] = {}
    for severity, heading in HEADINGS.items():
        lines += [f"### {heading}", ""]
        for rule in RULES.values():
            if rule.severity == severity:
                lines += [f"#### {rule.name}", "", f"In short: {rule.headline}.", ""]
                explained = tuple(_explained(rule))
                name = earlier.setdefault(explained, rule.name)
                same = [f"- The same causes as of [{name}](#{name})."]
                lines += [*(explained if name == rule.name else same), ""]
    return "\n".join(lines).rstrip() + "\n"


def _explained(rule: Rule) -> Iterator[str]:
    if rule.texts not in rule.variants.values():
        yield _line("", rule.texts)
    for key, texts in rule.variants.items():
        yield _line(LABELS.get(key, f"`{key}`: "), texts)


def _line(label: str, texts: Texts) -> str:
    cited = " ".join(f"{line}" for line in texts.cite())
    return f"- {label}{texts.why} {cited} **What to do:** {texts.mend}".replace("  ", " ")


if __name__ == "__main__":
    print(page_section(), end="")
