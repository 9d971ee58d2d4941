# SPDX-License-Identifier: MIT
"""What the core looks up in libibverbs and librdmacm is there, symbol by symbol, in the releases of
rdma-core that it runs with; and what later ones brought is known by the right number."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
from distributions import PROJECT

OLDEST: Final = 32  # rdma-core, by README.md

# By the version scripts of rdma-core's releases 13 to 64: each version of the symbols, the first
# release that has it, and the public functions that are in it. Within a release no symbol came
# later, but rereg_mr, and none has gone.
VERSIONS: Final = """
IBVERBS_1.1 17 ibv_rereg_mr
IBVERBS_1.5 20 ibv_get_pkey_index
IBVERBS_1.6 24 ibv_qp_to_qp_ex
IBVERBS_1.7 25 ibv_reg_mr_iova
IBVERBS_1.8 28 ibv_reg_mr_iova2
IBVERBS_1.9 30 ibv_get_device_index
IBVERBS_1.10 31 ibv_import_device ibv_import_mr ibv_import_pd ibv_query_ece ibv_set_ece
IBVERBS_1.10 31 ibv_unimport_mr ibv_unimport_pd
IBVERBS_1.11 32 _ibv_query_gid_ex _ibv_query_gid_table
IBVERBS_1.12 34 ibv_reg_dmabuf_mr
IBVERBS_1.13 35 ibv_import_dm ibv_is_fork_initialized ibv_unimport_dm
IBVERBS_1.14 36 ibv_query_qp_data_in_order
IBVERBS_1.15 59 ibv_alloc_dmah ibv_dealloc_dmah ibv_reg_mr_ex
IBVERBS_1.16 62 ibv_dm_export_dmabuf_fd ibv_query_port_speed
IBVERBS_1.17 64 ibv_alloc_buf ibv_free_buf ibv_reg_buf_mr
RDMACM_1.1 16 rdma_join_multicast_ex
RDMACM_1.2 23 rdma_establish rdma_init_qp_attr
RDMACM_1.3 31 rdma_get_remote_ece rdma_reject_ece rdma_set_local_ece
RDMACM_1.4 60 rdma_query_addrinfo rdma_resolve_addrinfo rdma_write_cm_event
"""

# Those of its first release, and of every later one, as far as a program may want them.
FIRST: Final = """
ibv_ack_async_event ibv_ack_cq_events ibv_alloc_pd ibv_attach_mcast ibv_close_device ibv_create_ah
ibv_create_ah_from_wc ibv_create_comp_channel ibv_create_cq ibv_create_qp ibv_create_srq
ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah ibv_destroy_comp_channel ibv_destroy_cq ibv_destroy_qp
ibv_destroy_srq ibv_detach_mcast ibv_event_type_str ibv_fork_init ibv_free_device_list
ibv_get_async_event ibv_get_cq_event ibv_get_device_guid ibv_get_device_list ibv_get_device_name
ibv_init_ah_from_wc ibv_modify_qp ibv_modify_srq ibv_node_type_str ibv_open_device
ibv_port_state_str ibv_query_device ibv_query_gid ibv_query_pkey ibv_query_port ibv_query_qp
ibv_query_srq ibv_rate_to_mbps ibv_rate_to_mult ibv_reg_mr ibv_resize_cq
ibv_resolve_eth_l2_from_gid ibv_wc_status_str
rdma_accept rdma_ack_cm_event rdma_bind_addr rdma_connect rdma_create_ep rdma_create_event_channel
rdma_create_id rdma_create_qp rdma_create_srq rdma_destroy_ep rdma_destroy_event_channel
rdma_destroy_id rdma_destroy_qp rdma_destroy_srq rdma_disconnect rdma_event_str rdma_free_devices
rdma_freeaddrinfo rdma_get_cm_event rdma_get_devices rdma_get_dst_port rdma_get_request
rdma_get_src_port rdma_getaddrinfo rdma_join_multicast rdma_leave_multicast rdma_listen
rdma_migrate_id rdma_notify rdma_reject rdma_resolve_addr rdma_resolve_route rdma_set_option
"""


def releases() -> dict[str, int]:
    """The rdma-core that brought each function; 13 is the first."""
    found = dict.fromkeys(FIRST.split(), 13)
    for _, release, *names in map(str.split, VERSIONS.strip().splitlines()):
        found |= dict.fromkeys(names, int(release))
    return found


LIBRARY: Final = (PROJECT / "csrc/base/library.c").read_text()
REQUIRED, LATER = LIBRARY.split("#define LATER_FUNCTIONS(F)")
LATER = LATER[: LATER.index("/* ---- the table ---- */")]


def required() -> set[str]:
    """What libibverbs cannot be without."""
    names = set(re.findall(r"F\((?:[^()\"]+, )?(ibv_\w+), ", REQUIRED))
    assert len(names) > 30
    return names


def later() -> dict[str, int]:
    """What it can be without, and the rdma-core that the table has for it."""
    found = re.findall(r'F\((\d+), "\w+",[^,]*,(?:\s*\\\s+)?[^,]+, (\w+), ', LATER)
    assert len(found) == LATER.count("    F(")
    return {name: int(release) for release, name in found}


def found_by_name() -> set[str]:
    text = "".join(path.read_text() for path in (PROJECT / "csrc").rglob("*.c"))
    return set(re.findall(r'cqn_library_find\("(\w+)"\)', text))


def of_rdma_cm() -> set[str]:
    text = (PROJECT / "csrc/cm/cm.h").read_text().partition("#define CQN_CM_FUNCTIONS(F)")[2]
    return {f"rdma_{name}" for name in re.findall(r"\bF\((\w+)\)", text.partition("/*")[0])}


def test_what_is_required_every_rdma_core_has() -> None:
    assert {name for name in required() if releases()[name] > 13} == set()


def test_what_came_later_is_told_by_the_rdma_core_that_brought_it() -> None:
    assert later() == {name: releases()[name] for name in later()}
    assert found_by_name() <= releases().keys()


def test_rdma_cm_is_told_by_the_rdma_core_that_has_all_of_it() -> None:
    text = (PROJECT / "csrc/cm/library.c").read_text()
    (told,) = re.findall(r"that of rdma-core (\d+), or later", text)
    assert max(releases()[name] for name in of_rdma_cm()) == int(told)
    assert int(told) <= OLDEST


def table() -> list[tuple[int, str, str]]:
    """errors.md: the rdma-core of distributions, and what it lacks."""
    text = (PROJECT / "docs/errors.md").read_text().partition("| rdma-core | is that of |")[2]
    rows = re.findall(r"^\| (\d+)[^|]*\| ([^|]*) \| ([^|]*) \|$", text, re.M)
    return [(int(release), where, lacks) for release, where, lacks in rows]


def test_the_manual_says_what_each_distribution_lacks() -> None:
    looked_up = {name: releases()[name] for name in [*later(), *found_by_name()]}
    assert len(table()) > 5
    for release, where, lacks in table():
        missing = {name for name, since in looked_up.items() if since > release}
        assert set(re.findall(r"`(\w+)`", lacks)) == missing, where


def exported(library: str) -> dict[str, str]:
    """The functions of this machine's library and their versions; of several the default."""
    (path, *_) = Path("/usr").glob(f"lib*/**/{library}")
    command = ["readelf", "--wide", "--dyn-syms", path]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(re.findall(r" FUNC +GLOBAL +DEFAULT +\d+ (\w+)@@(\S+)", text))


@pytest.mark.parametrize("library", ["libibverbs.so.1", "librdmacm.so.1"])
def test_this_machines_library_exports_what_its_release_should(library: str) -> None:
    there = exported(library)
    first = {"libibverbs.so.1": "IBVERBS_1", "librdmacm.so.1": "RDMACM_1"}[library]
    rows = [row.split() for row in VERSIONS.strip().splitlines() if row.startswith(first)]
    newest = max(int(v.rpartition(".")[2]) for v in there.values() if v.startswith(first))
    for version, _, *names in rows:
        has_it = int(version.rpartition(".")[2]) <= newest
        expected = dict.fromkeys(names, version) if has_it else {}
        assert {name: there[name] for name in names if name in there} == expected
    names = {name for name in FIRST.split() if name.startswith("rdma") == (first == "RDMACM_1")}
    assert {name for name in names if name not in there} == set()
