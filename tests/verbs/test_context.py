# SPDX-License-Identifier: MIT
import errno
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import pytest
from support import is_iwarp, is_rxe, kernel, python

from cqnotify import (
    AH,
    CQ,
    MR,
    MTU,
    MW,
    PD,
    QP,
    SRQ,
    CompletionChannel,
    Context,
    Device,
    DeviceCapFlags,
    FailureWatch,
    ForkStatus,
    GIDType,
    LinkLayer,
    NodeType,
    PortState,
    QPType,
    VerbsError,
    devices,
    fork_status,
)
from cqnotify.hw import ODPGeneralCaps, ODPTransportCaps


def test_devices_lists_what_the_kernel_has(ctx: Context) -> None:
    assert [d.name for d in devices()] == sorted(os.listdir("/sys/class/infiniband"))
    assert devices()[0].node_type is (NodeType.RNIC if is_iwarp(ctx) else NodeType.CA)
    assert devices()[0].guid == ctx.query_device().node_guid


def test_a_context_opens_the_first_device_or_the_one_that_is_named(ctx: Context) -> None:
    name = devices()[0].name
    assert ctx.name == name
    with Context(name) as same, Context(devices()[0]) as by_device:
        assert same.name == by_device.name == name


def test_an_unknown_device_is_refused_with_the_names_there_are(ctx: Context) -> None:
    with pytest.raises(VerbsError, match=rf"'nosuch'.*{ctx.name}") as e:
        Context("nosuch")
    assert e.value.errno == errno.ENODEV
    assert e.value.verb == "ibv_open_device"


OPEN_AS_NOBODY = """
import os, cqnotify
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    print(cqnotify.Context().name)
except cqnotify.VerbsError as e:
    print(e.errno, e)
"""


@contextmanager
def closed_to_others(*files: Path) -> Iterator[None]:
    """Inside, only root may open the files of these devices."""
    modes = [file.stat().st_mode for file in files]
    try:
        for file in files:
            file.chmod(0o600)
        yield
    finally:
        for file, mode in zip(files, modes, strict=True):
            file.chmod(mode)


def file_of(device: Device) -> Path:
    entries = Path("/sys/class/infiniband_verbs").glob("uverbs*/ibdev")
    (name,) = (entry.parent.name for entry in entries if entry.read_text().strip() == device.name)
    return Path("/dev/infiniband", name)


def test_without_permission_the_error_names_the_file_and_all_devices(ctx: Context) -> None:
    with closed_to_others(*Path("/dev/infiniband").glob("uverbs*")):
        out = python("-c", OPEN_AS_NOBODY, check=True)
    assert out.stdout.startswith(f"{errno.EACCES} "), out
    assert "/dev/infiniband/uverbs0" in out.stdout
    assert "permission" in out.stdout
    names = [device.name for device in devices()]
    none = f"; none of {', '.join(names)} can be opened\n"
    assert out.stdout.endswith(none if len(names) > 1 else "that file\n")


def test_without_a_name_a_context_is_of_the_first_device_that_can_be_opened(
    rdma_device: Device, rdma_device2: Device
) -> None:
    with closed_to_others(file_of(rdma_device)):
        out = python("-c", OPEN_AS_NOBODY, check=True)
    assert out.stdout == f"{rdma_device2.name}\n"


FEW_DESCRIPTORS = """
import errno, os, resource, sys
import cqnotify
from cqnotify import cm, _attr_conversion, attrs  # which needs descriptors, too

def leave(free):
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as e:
        assert e.errno == errno.EMFILE
    for _ in range(free):
        os.close(taken.pop())
    return taken

calls = {
    "devices": lambda: len(cqnotify.devices()) > 0,
    "Context": lambda: cqnotify.Context().close() is None,
    "CMChannel": lambda: cqnotify._core.CMChannel().close() is None,
}
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
taken = leave(int(sys.argv[1]))
try:
    said = calls[sys.argv[2]]()
except OSError as e:
    said = errno.errorcode.get(e.errno, e)
for fd in taken:
    os.close(fd)
print(said, *[call() for call in calls.values()])
"""


@pytest.mark.usefixtures("ctx")
@pytest.mark.parametrize("call", ["devices", "Context", "CMChannel"])
@pytest.mark.parametrize("free", range(9))
def test_few_descriptors_are_no_absence_of_devices_or_drivers(free: int, call: str) -> None:
    """When it is the first call into the library: afterwards all is there."""
    said = python("-c", FEW_DESCRIPTORS, str(free), call, check=True).stdout.split()
    assert said[1:] == ["True"] * 3
    assert said[0] in ({"EMFILE"} if free < 4 else {"EMFILE", "True"} if free < 8 else {"True"})


def test_query_device_ex_says_the_same_and_more(ctx: Context) -> None:
    attr = ctx.query_device_ex()
    assert attr.orig_attr == ctx.query_device()
    assert isinstance(attr.orig_attr.fw_ver, str)
    assert attr.orig_attr.phys_port_cnt >= 1
    assert attr.device_cap_flags_ex & 0xFFFFFFFF == attr.orig_attr.device_cap_flags
    assert attr.phys_port_cnt_ex == attr.orig_attr.phys_port_cnt
    for flags, kind in (
        (attr.orig_attr.device_cap_flags, DeviceCapFlags),
        (attr.device_cap_flags_ex, DeviceCapFlags),
        (attr.odp_caps.general_caps, ODPGeneralCaps),
        (attr.odp_caps.per_transport_caps.ud_odp_caps, ODPTransportCaps),
        (attr.xrc_odp_caps, ODPTransportCaps),
    ):
        assert type(flags) is kind
    if is_rxe(ctx):
        assert DeviceCapFlags.MEM_WINDOW_TYPE_2B in attr.orig_attr.device_cap_flags
        newer = DeviceCapFlags.ATOMIC_WRITE | DeviceCapFlags.FLUSH_GLOBAL
        assert bool(newer & attr.device_cap_flags_ex) == (kernel() >= (6, 3))


# Of struct ibv_device_attr_ex: what no verb of this package makes use of.
WITHOUT_A_VERB = {"pci_atomic_caps"}


def test_query_device_ex_has_every_field_of_the_header_that_a_verb_needs(ctx: Context) -> None:
    header = Path("/usr/include/infiniband/verbs.h").read_text()

    def fields(struct: str) -> list[str]:
        body = header.split(f"struct {struct} {{", 1)[1].split("\n};", 1)[0]
        return re.findall(r"(\w+);", body)

    attr = ctx.query_device_ex()
    assert set(attr._fields) == set(fields("ibv_device_attr_ex")) - WITHOUT_A_VERB
    assert set(fields("ibv_odp_caps")) == {
        *attr.odp_caps._fields,
        *attr.odp_caps.per_transport_caps._fields,
    }
    for name, struct in (
        ("packet_pacing_caps", "ibv_packet_pacing_caps"),
        ("cq_mod_caps", "ibv_cq_moderation_caps"),
        ("tso_caps", "ibv_tso_caps"),
        ("rss_caps", "ibv_rss_caps"),
        ("tm_caps", "ibv_tm_caps"),
    ):
        assert list(getattr(attr, name)._fields) == fields(struct)


def test_the_attributes_are_those_that_ibv_devinfo_prints(ctx: Context) -> None:
    out = subprocess.run(
        ["ibv_devinfo", "-v", "-d", ctx.name], capture_output=True, text=True, check=True
    ).stdout
    printed = dict(re.findall(r"^\t(\w+):\s+(0x[0-9a-fA-F]+|\d+)$", out, re.MULTILINE))
    attr = ctx.query_device_ex()
    ours = {**attr._asdict(), **attr.orig_attr._asdict()}
    same = [name for name in printed if name in ours]
    assert {name: int(printed[name], 0) for name in same} == {name: ours[name] for name in same}
    assert {"max_mr_size", "device_cap_flags", "max_mcast_grp", "phys_port_cnt"} <= set(same)
    assert len(same) > 25


def test_a_pkey_is_found_by_its_index_and_its_index_by_it(ctx: Context) -> None:
    folder = Path(f"/sys/class/infiniband/{ctx.name}/ports/1/pkeys")
    size = ctx.query_port().pkey_tbl_len
    table = [int((folder / str(i)).read_text(), 16) for i in range(size)]
    assert [ctx.query_pkey(i) for i in range(size)] == table
    for pkey in table[:1]:
        assert ctx.query_pkey(index=0, port_num=1) == pkey
        assert ctx.get_pkey_index(pkey) == ctx.get_pkey_index(pkey, port_num=1) == 0
    found = r"\[0\] 0xffff" if table else "none"
    with pytest.raises(LookupError, match=rf"no P_Key 0x1234; {ctx.name} port 1 has {found}"):
        ctx.get_pkey_index(0x1234)


def test_a_pkey_out_of_range_is_refused_with_the_limit(ctx: Context) -> None:
    last = ctx.query_port().pkey_tbl_len - 1
    words = "index is {}: " + f"it must be 0 to {last}" if last >= 0 else "has no P_Key at any"
    for bad in (-1, last + 1, 1 << 70):
        with pytest.raises(ValueError, match=words.format(bad)):
            ctx.query_pkey(bad)
    for bad in (-1, 0x10000):
        with pytest.raises(ValueError, match=f"pkey is {bad}: it must be 0 to 65535"):
            ctx.get_pkey_index(bad)
    for call in (ctx.query_pkey, ctx.get_pkey_index):
        with pytest.raises(ValueError, match="port_num is 2: it must be 1 to 1"):
            call(0, 2)
    if last >= 0:
        with pytest.raises(TypeError, match="index must be an integer, not str"):
            ctx.query_pkey("0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pkey must be an integer, not str"):
        ctx.get_pkey_index("0xffff")  # type: ignore[arg-type]


def test_gid_table_tells_the_gids_their_types_and_their_net_devices(ctx: Context) -> None:
    folder = Path(f"/sys/class/infiniband/{ctx.name}/ports/1/gid_attrs")
    names = {GIDType.IB: "IB/RoCE v1", GIDType.ROCE_V1: "IB/RoCE v1", GIDType.ROCE_V2: "RoCE v2"}
    table = ctx.query_gid_table()
    assert table == ctx.query_gid_table(1)
    for entry in table:
        assert names[entry.gid_type] == (folder / f"types/{entry.index}").read_text().strip()
        assert entry.netdev == (folder / f"ndevs/{entry.index}").read_text().strip()
    if is_iwarp(ctx):  # its one GID is the MAC
        (entry,) = table
        mac = Path(f"/sys/class/net/{entry.netdev}/address").read_text().strip()
        assert entry.gid.packed == bytes.fromhex(mac.replace(":", "")) + bytes(10)
        return
    assert any(e.gid.is_link_local for e in table)
    assert all(e.gid_type is GIDType.ROCE_V2 for e in table)


def test_query_port_tells_state_and_mtu(ctx: Context) -> None:
    port = ctx.query_port()
    assert port == ctx.query_port(1) == ctx.query_port(port_num=1)
    assert port.state is PortState.ACTIVE
    assert port.link_layer in (LinkLayer.ETHERNET, LinkLayer.INFINIBAND)
    assert isinstance(port.active_mtu, MTU)
    assert port.active_mtu.bytes in (256, 512, 1024, 2048, 4096)
    assert port.active_speed_ex in (0, port.active_speed)


def test_a_gid_is_found_by_address_and_by_type(ctx: Context) -> None:
    table = ctx.query_gid_table()
    for entry in table:
        assert ctx.find_gid(entry.gid) == entry
        assert ctx.find_gid(str(entry.gid)) == entry
        assert ctx.query_gid(entry.index) == entry
    if not is_iwarp(ctx):
        mapped = next(e for e in table if e.gid.ipv4_mapped)
        assert ctx.find_gid(mapped.gid.ipv4_mapped) == mapped
        assert ctx.find_gid(str(mapped.gid.ipv4_mapped)) == mapped
    assert ctx.find_gid(gid_type=table[0].gid_type) == table[0]
    assert ctx.find_gid(netdev=table[0].netdev) == table[0]


def test_a_gid_that_is_not_there_is_a_lookup_error_naming_those_that_are(ctx: Context) -> None:
    table = ctx.query_gid_table()
    present = str(table[0].gid)
    empty = next(i for i in range(1000) if i not in {e.index for e in table})
    for bad in (-1, 1000, 1 << 32, 1 << 70, empty):
        with pytest.raises(LookupError, match=f"no GID at index {bad}; .*{present}"):
            ctx.query_gid(bad)
    for missing in (IPv4Address("192.0.2.1"), IPv6Address("2001:db8::1"), "192.0.2.1"):
        with pytest.raises(LookupError, match=present):
            ctx.find_gid(missing)
    with pytest.raises(TypeError, match="index must be an integer, not str"):
        ctx.query_gid("0")  # type: ignore[arg-type]
    for query in (lambda: ctx.query_gid(0, 2), lambda: ctx.query_gid_table(2)):
        with pytest.raises(ValueError, match="port_num is 2: it must be 1 to 1"):
            query()
    with pytest.raises(ValueError, match="port_num is 2: it must be 1 to 1"):
        ctx.find_gid(port_num=2)


def test_a_fork_is_safe_by_the_kernel_where_that_copies_pinned_pages(ctx: Context) -> None:
    safe = kernel() >= (5, 13)
    assert fork_status() is (ForkStatus.UNNEEDED if safe else ForkStatus.ENABLED)


@pytest.mark.usefixtures("conversation")
def test_a_context_closes_memory_after_the_queues_to_which_it_is_posted(ctx: Context) -> None:
    """And the rest after what uses it, in whatever order they were made."""
    pd, channel, watch = PD(ctx), CompletionChannel(ctx), FailureWatch(ctx)
    cq = CQ(ctx, 16, channel=channel)
    srq = SRQ(pd, 4)
    qp, sqp = QP(pd, QPType.RC, send_cq=cq), QP(pd, QPType.RC, send_cq=cq, srq=srq)
    mr, mw = MR(pd, 64), MW(pd)
    gid = ctx.find_gid()
    ah = AH(pd, dgid=gid.gid, sgid_index=gid.index)
    qp.connect(qp.address())
    qp.post_recv(mr)
    srq.post_recv(mr)
    stages: list[set[Any]] = [{qp, sqp}, {srq}, {mr, mw, ah}, {cq}, {pd, channel, watch}, {ctx}]
    closed: list[Any] = []
    for thing in set[Any]().union(*stages):
        thing.add_close_callback(partial(closed.append, thing))
    ctx.close()
    for stage in stages:
        assert set(closed[: len(stage)]) == stage
        del closed[: len(stage)]
    assert closed == []
