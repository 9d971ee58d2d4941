# SPDX-License-Identifier: MIT
"""Sentences with the values of a finding.

In a text `{cq}` is a value, `{cq:CQ}` the same with its name before it ("CQ 1"), `{polls:n poll}` a
count with its noun ("3 polls"), `{polls:were}` the verb for it, `{address:hex}` a number in
hexadecimal digits. A value that is missing is shown as "?".
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["fill", "status_name"]

UNKNOWN: Final = "?"
IN_CALL: Final = {
    "ibv_get_cq_event": "ibv_get_cq_event()",
    "read": "read() of the descriptor",
}
ARMED: Final = {
    "before": ": the CQ was armed after {they} had come",
    "no": ": the CQ is not armed",
    "solicited": ": the CQ is armed for solicited completions only",
}
PLURALS: Final = {"entry": "entries"}
# enum ibv_wc_status, in its order.
STATUSES: Final = (
    "SUCCESS",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "LOC_EEC_OP_ERR",
    "LOC_PROT_ERR",
    "WR_FLUSH_ERR",
    "MW_BIND_ERR",
    "BAD_RESP_ERR",
    "LOC_ACCESS_ERR",
    "REM_INV_REQ_ERR",
    "REM_ACCESS_ERR",
    "REM_OP_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "LOC_RDD_VIOL_ERR",
    "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR",
    "INV_EECN_ERR",
    "INV_EEC_STATE_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    "GENERAL_ERR",
    "TM_ERR",
    "TM_RNDV_INCOMPLETE",
)


def status_name(status: object) -> str:
    """Return the name that <infiniband/verbs.h> has for a completion's status."""
    if isinstance(status, int) and 0 <= status < len(STATUSES):
        return f"IBV_WC_{STATUSES[status]}"
    return f"status {UNKNOWN if status is None else status}"


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Return the text with the values, and with the phrases that are derived from them."""
    return _Formatter().vformat(text, (), {**values, **_derived(values)})


def _derived(values: Mapping[str, Any]) -> dict[str, str]:
    call = str(values.get("call", "a wait"))
    they = "it" if values.get("completions") == 1 else "they"
    return {
        "thread": str(values.get("thread", "A thread")),
        "call_text": IN_CALL.get(call, f"{call}()" if "call" in values else call),
        "armed_text": ARMED.get(str(values.get("armed")), "").replace("{they}", they),
        "status_text": status_name(values.get("status")),
    }


class _Formatter(string.Formatter):
    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), UNKNOWN)

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("n "):
            count = len(value) if isinstance(value, list) else value
            noun = format_spec[2:]
            *words, last = noun.split(" ")
            several = " ".join([*words, PLURALS.get(last, f"{last}s")])
            return f"{_plain(count)} {noun if count == 1 else several}"
        if format_spec == "were":
            return "was" if value == 1 else "were"
        if format_spec == "hex":
            return hex(value) if isinstance(value, int) else _plain(value)
        return f"{format_spec} {_plain(value)}" if format_spec else _plain(value)


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)
