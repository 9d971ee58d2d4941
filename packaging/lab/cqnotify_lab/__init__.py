# SPDX-License-Identifier: MIT
"""The kernel of cqnotify's lab, where `cqnotify lab` finds it. SOURCE.md there names its source."""
