//! The memory of a guest's thread.

use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::super::performer::Performed;

/// The memory of this thread, of which a call reads each part once.
pub(super) struct Memory(pub(super) u32);

impl Memory {
    /// As much of it as is there.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<usize, Performed> {
        let fault = Performed::Done(libc::EFAULT);
        if address == 0 {
            return Err(fault);
        }
        // Refused where the system lets no program look into its children (Yama), and where the guest shut itself off.
        let file = File::open(format!("/proc/{}/mem", self.0)).map_err(|_| Performed::No)?;
        match file.read_at(buffer, address) {
            Ok(0) | Err(_) => Err(fault),
            Ok(length) => Ok(length),
        }
    }

    pub(super) fn bytes(&self, address: u64, length: usize) -> Result<Vec<u8>, Performed> {
        let mut buffer = vec![0; length];
        if length > 0 && self.read(address, &mut buffer)? < length {
            return Err(Performed::Done(libc::EFAULT));
        }
        Ok(buffer)
    }

    /// Up to its NUL, which is among the first `longest` bytes, or the call fails with `else_errno`.
    pub(super) fn string(
        &self,
        address: u64,
        longest: usize,
        else_errno: i32,
    ) -> Result<CString, Performed> {
        let mut buffer = vec![0; longest];
        let length = self.read(address, &mut buffer)?;
        buffer.truncate(length);
        match buffer.iter().position(|byte| *byte == 0) {
            Some(end) => {
                buffer.truncate(end);
                CString::new(buffer).map_err(|_| Performed::No)
            }
            None if length < longest => Err(Performed::Done(libc::EFAULT)),
            None => Err(Performed::Done(else_errno)),
        }
    }
}
