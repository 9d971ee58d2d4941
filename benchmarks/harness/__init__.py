# SPDX-License-Identifier: MIT
"""What all benchmarks share: it runs their subjects, judges the figures and shows them."""
