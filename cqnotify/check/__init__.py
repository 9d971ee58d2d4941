# SPDX-License-Identifier: MIT
"""`cqnotify check`: runs a program under the observer, and reports what it found."""
