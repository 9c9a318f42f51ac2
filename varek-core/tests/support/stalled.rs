//! A file system that says everything of its one file and never gives its contents: FUSE, from this process.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};

/// The file's path beneath where it is mounted.
pub(crate) const FILE: &str = "file";

/// Mounted, and withholding, until it is dropped.
pub(crate) struct Stalled {
    device: Arc<File>,
    place: CString,
    /// Reads that were asked for and not answered.
    withheld: Arc<Mutex<Vec<u64>>>,
}

// include/uapi/linux/fuse.h
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

impl Stalled {
    /// Mounts it here, in mounts of this thread's own, which the threads that it starts after this share.
    pub(crate) fn mount(place: &Path) -> io::Result<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        super::embedder::sys::own_mounts()?;
        mount_change(
            "/",
            MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
        )?;
        let number = device.as_raw_fd();
        let options = format!("fd={number},rootmode=40000,user_id=0,group_id=0,allow_other");
        let options = CString::new(options)?;
        let place = CString::new(place.as_os_str().as_encoded_bytes())?;
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount(c"stalled", &place, c"fuse", flags, options.as_c_str())?;
        let stalled = Self {
            device: Arc::new(device),
            place,
            withheld: Arc::default(),
        };
        let (device, withheld) = (stalled.device.clone(), stalled.withheld.clone());
        std::thread::spawn(move || serve(&device, &withheld));
        Ok(stalled)
    }

    /// Whether somebody waits for the contents.
    pub(crate) fn withholds(&self) -> bool {
        !self.withheld.lock().unwrap().is_empty()
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        // A thread that waits for a request which its server has can only be ended by an answer.
        for unique in self.withheld.lock().unwrap().drain(..) {
            answer(&self.device, unique, -libc::EIO, &[]);
        }
        let _ = unmount(&self.place, UnmountFlags::DETACH);
    }
}

fn serve(mut device: &File, withheld: &Mutex<Vec<u64>>) {
    let mut request = vec![0; 1 << 17];
    // Until it is unmounted.
    while let Ok(length) = device.read(&mut request) {
        let request = &request[..length];
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (unique, node) = (long(8), long(16));
        let body = match word(4) {
            INIT => {
                let mut body = [0; 64];
                body[..4].copy_from_slice(&7_u32.to_ne_bytes());
                body[4..8].copy_from_slice(&31_u32.to_ne_bytes());
                body[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
                body.to_vec()
            }
            LOOKUP if request[40..].starts_with(FILE.as_bytes()) => {
                // The node, its generation, and how long both are good for.
                let mut body = [2_u64, 0, 60, 60, 0].map(u64::to_ne_bytes).concat();
                body.extend(attributes(2));
                body
            }
            GETATTR => {
                let mut body = [60_u64, 0].map(u64::to_ne_bytes).concat();
                body.extend(attributes(node));
                body
            }
            OPEN | OPENDIR => vec![0; 16],
            RELEASE => Vec::new(),
            READ => {
                withheld.lock().unwrap().push(unique);
                continue;
            }
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            LOOKUP => {
                answer(device, unique, -libc::ENOENT, &[]);
                continue;
            }
            _ => {
                answer(device, unique, -libc::ENOSYS, &[]);
                continue;
            }
        };
        answer(device, unique, 0, &body);
    }
}

/// `struct fuse_attr`
fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == 2 { 0o100_644 } else { 0o40_755 };
    let mut body = [node, 4096, 8, 0, 0, 0].map(u64::to_ne_bytes).concat();
    // Nanoseconds, mode, links, owner, group, device, block, flags.
    let words = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    body.extend(words.map(u32::to_ne_bytes).concat());
    body
}

fn answer(mut device: &File, unique: u64, error: i32, body: &[u8]) {
    let length = u32::try_from(16 + body.len()).unwrap();
    let mut reply = length.to_ne_bytes().to_vec();
    reply.extend(error.to_ne_bytes());
    reply.extend(unique.to_ne_bytes());
    reply.extend(body);
    // Whoever asked may be gone.
    let _ = device.write(&reply);
}
