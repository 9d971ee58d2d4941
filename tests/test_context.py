# SPDX-License-Identifier: MIT
import errno
import gc
import os
import subprocess
import sys
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest

from cqnotify import (
    CQ,
    MR,
    MTU,
    PD,
    ClosedError,
    CompletionChannel,
    Context,
    GIDType,
    LinkLayer,
    NodeType,
    PortState,
    VerbsError,
    devices,
)


def test_devices_lists_what_the_kernel_has(ctx: Context) -> None:
    assert [d.name for d in devices()] == sorted(os.listdir("/sys/class/infiniband"))
    assert devices()[0].node_type is NodeType.CA
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


@pytest.mark.parametrize("bad", [1, b"rxe0", object()])
def test_a_name_of_a_wrong_type_is_refused(bad: object) -> None:
    with pytest.raises(TypeError):
        Context(bad)  # type: ignore[arg-type]


def test_a_name_with_a_null_is_refused() -> None:
    with pytest.raises(ValueError, match="null"):
        Context("rxe\0")


def test_without_permission_the_error_names_the_file(ctx: Context) -> None:
    """In a child that is nobody, while the device's file is closed to it."""
    code = (
        "import os, cqnotify\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: cqnotify.Context()\n"
        "except cqnotify.VerbsError as e: print(e.errno, e)\n"
    )
    files = list(Path("/dev/infiniband").glob("uverbs*"))
    modes = [f.stat().st_mode for f in files]
    try:
        for f in files:
            f.chmod(0o600)
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    finally:
        for f, mode in zip(files, modes, strict=True):
            f.chmod(mode)
    assert out.stdout.startswith(f"{errno.EACCES} "), out
    assert "/dev/infiniband/uverbs0" in out.stdout
    assert "permission" in out.stdout


def test_query_device_has_the_limits(ctx: Context) -> None:
    attr = ctx.query_device()
    assert attr.max_qp > 0
    assert attr.max_cqe > 0
    assert attr.max_sge > 0
    assert attr.phys_port_cnt >= 1
    assert isinstance(attr.fw_ver, str)


def test_query_port_tells_state_and_mtu(ctx: Context) -> None:
    port = ctx.query_port()
    assert port == ctx.query_port(1) == ctx.query_port(port_num=1)
    assert port.state is PortState.ACTIVE
    assert port.link_layer in (LinkLayer.ETHERNET, LinkLayer.INFINIBAND)
    assert isinstance(port.active_mtu, MTU)
    assert port.active_mtu.bytes in (256, 512, 1024, 2048, 4096)


@pytest.mark.parametrize("bad", [0, 2, 255, 256, -1, 1 << 70])
def test_a_port_that_does_not_exist_is_refused_with_the_limit(ctx: Context, bad: int) -> None:
    with pytest.raises(ValueError, match=rf"port_num is {bad}: it must be 1 to 1"):
        ctx.query_port(bad)


def test_a_port_of_a_wrong_type_is_refused(ctx: Context) -> None:
    with pytest.raises(TypeError, match="port_num must be an integer, not str"):
        ctx.query_port("1")  # type: ignore[arg-type]


def test_gid_table_holds_the_link_local_and_the_ipv4_address(ctx: Context) -> None:
    table = ctx.gid_table()
    assert table == ctx.gid_table(1)
    assert any(e.gid.is_link_local for e in table)
    assert all(e.gid_type is GIDType.ROCE_V2 for e in table)


def test_a_gid_is_found_by_address_and_by_type(ctx: Context) -> None:
    table = ctx.gid_table()
    for entry in table:
        assert ctx.find_gid(entry.gid) == entry
        assert ctx.find_gid(str(entry.gid)) == entry
        assert ctx.query_gid(entry.index) == entry
    mapped = next(e for e in table if e.gid.ipv4_mapped)
    assert ctx.find_gid(mapped.gid.ipv4_mapped) == mapped
    assert ctx.find_gid(str(mapped.gid.ipv4_mapped)) == mapped
    assert ctx.find_gid(gid_type=GIDType.ROCE_V2) == table[0]
    assert ctx.find_gid(netdev=table[0].netdev) == table[0]


def test_a_gid_that_is_not_there_is_a_lookup_error_naming_those_that_are(ctx: Context) -> None:
    present = str(ctx.gid_table()[0].gid)
    for missing in (IPv4Address("192.0.2.1"), IPv6Address("2001:db8::1"), "192.0.2.1"):
        with pytest.raises(LookupError, match=present):
            ctx.find_gid(missing)
    with pytest.raises(LookupError):
        ctx.query_gid(1000)


def test_every_method_of_a_closed_context_is_a_closed_error(ctx: Context) -> None:
    ctx.close()
    ctx.close()
    assert ctx.closed
    for call in (
        ctx.query_device,
        ctx.query_port,
        ctx.gid_table,
        lambda: ctx.name,
        lambda: ctx.async_fd,
        lambda: ctx.num_comp_vectors,
        lambda: PD(ctx),
        lambda: CompletionChannel(ctx),
        lambda: CQ(ctx, 1),
        ctx.__enter__,
    ):
        with pytest.raises(ClosedError):
            call()


def test_leaving_the_context_closes_everything(ctx: Context) -> None:
    pd = PD(ctx)
    channel = CompletionChannel(ctx)
    cq = CQ(ctx, 4, channel=channel)
    mr = MR(pd, 64)
    ctx.close()
    assert pd.closed
    assert channel.closed
    assert cq.closed
    assert mr.closed


def test_a_context_that_is_forgotten_warns_and_is_closed() -> None:
    context = Context()
    pd = PD(context)
    mr = MR(pd, 64)
    with pytest.warns(ResourceWarning, match="unclosed MR"):
        del mr
    with pytest.warns(ResourceWarning, match="unclosed"):
        del context, pd
        gc.collect()


def test_file_descriptors_are_given_back(ctx: Context) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for _ in range(5):
        with Context() as other:
            for _ in range(3):
                CompletionChannel(other)
            assert count() > before
    assert count() == before


def test_what_is_no_address_is_refused(ctx: Context) -> None:
    for bad in (5, bytes(16), []):
        with pytest.raises(TypeError, match="address must be an IP address"):
            ctx.find_gid(bad)  # type: ignore[arg-type]
