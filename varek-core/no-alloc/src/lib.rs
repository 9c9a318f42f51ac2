//! Proof that the child of `varek-core` compiles without `std` and without an allocator.
//!
//! The same source files are compiled here under `#![no_std]` and without `extern crate alloc`: whatever
//! would allocate, lock or format between clone and exec does not build.
#![no_std]
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
#![expect(
    dead_code,
    reason = "nothing is called here; that it compiles is what is shown"
)]

/// Stands in for `varek_seccomp`: the child only needs the layout of struct sock_filter.
mod varek_filter {
    /// `struct sock_filter`.
    #[repr(C)]
    #[derive(Debug)]
    pub(crate) struct Instruction {
        code: u16,
        jt: u8,
        jf: u8,
        k: u32,
    }
}

#[path = "../../src/child/mod.rs"]
mod child;
