// SPDX-License-Identifier: MIT
//! Each device opens, has an address, registers memory and makes a completion queue.

use std::ffi::CStr;
use std::ptr::null_mut;
use verbs::*;

#[test]
fn each_device_works() {
    let mut names = Vec::new();
    unsafe {
        let mut count = 0;
        let list = ibv_get_device_list(&mut count);
        for i in 0..count as usize {
            let device = *list.add(i);
            names.push(
                CStr::from_ptr(ibv_get_device_name(device))
                    .to_str()
                    .unwrap(),
            );
            let context = ibv_open_device(device);
            assert!(!context.is_null());
            let mut gid = [0u8; 16];
            assert_eq!(ibv_query_gid(context, 1, 0, gid.as_mut_ptr()), 0);
            assert_ne!(gid, [0; 16]);
            let pd = ibv_alloc_pd(context);
            let mut buffer = vec![0u8; 4096];
            let mr = ibv_reg_mr(
                pd,
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                ACCESS_LOCAL_WRITE,
            );
            assert!(!mr.is_null());
            let cq = ibv_create_cq(context, 16, null_mut(), null_mut(), 0);
            assert!(!cq.is_null());
            assert_eq!(ibv_destroy_cq(cq), 0);
            assert_eq!(ibv_dereg_mr(mr), 0);
            assert_eq!(ibv_dealloc_pd(pd), 0);
            assert_eq!(ibv_close_device(context), 0);
        }
        assert!(!names.is_empty(), "there is no RDMA device");
        println!("{}", names.join(" "));
        ibv_free_device_list(list);
    }
}
