// SPDX-License-Identifier: MIT
//! The part of libibverbs that the test needs, by hand: no crate is fetched.

use std::os::raw::{c_char, c_int, c_void};

macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] pub struct $name { _private: [u8; 0] })* };
}
opaque!(Device Context Pd Mr Cq Channel);

pub const ACCESS_LOCAL_WRITE: c_int = 1;

#[link(name = "ibverbs")]
extern "C" {
    pub fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device;
    pub fn ibv_free_device_list(list: *mut *mut Device);
    pub fn ibv_get_device_name(device: *mut Device) -> *const c_char;
    pub fn ibv_open_device(device: *mut Device) -> *mut Context;
    pub fn ibv_close_device(context: *mut Context) -> c_int;
    pub fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, gid: *mut u8) -> c_int;
    pub fn ibv_alloc_pd(context: *mut Context) -> *mut Pd;
    pub fn ibv_dealloc_pd(pd: *mut Pd) -> c_int;
    pub fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr;
    pub fn ibv_dereg_mr(mr: *mut Mr) -> c_int;
    pub fn ibv_create_cq(
        context: *mut Context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut Channel,
        comp_vector: c_int,
    ) -> *mut Cq;
    pub fn ibv_destroy_cq(cq: *mut Cq) -> c_int;
}
