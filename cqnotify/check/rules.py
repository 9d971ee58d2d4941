# SPDX-License-Identifier: MIT
"""The rules: what each finding of the observer means, why it is wrong, and what to do.

The observer (csrc/check) decides; it writes a rule's name and values into its log. `{cq}` is a
number, `{cq:CQ}` the same with its name before it.
"""
