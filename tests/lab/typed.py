# SPDX-License-Identifier: MIT
"""Reads what basedpyright --verifytypes --outputjson says; fails if those who install the package
do not know a type of it. The lab is exempt: its interface is its commands.
"""

from __future__ import annotations

import json
import sys

EXEMPT = "cqnotify.lab."

symbols = json.load(sys.stdin)["typeCompleteness"]["symbols"]
ours = [s for s in symbols if s["isExported"] and not s["name"].startswith(EXEMPT)]
unknown = [s for s in ours if not s["isTypeKnown"] or s["isTypeAmbiguous"]]
for symbol in unknown:
    for found in symbol["diagnostics"]:
        print(f"{symbol['name']}: {found['message']}")
print(f"{len(ours) - len(unknown)} of {len(ours)} exported symbols have known types")
sys.exit(bool(unknown) or not ours)
