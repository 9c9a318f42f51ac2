//! The guardian: a tiny process beside the embedder that kills the whole tree when the embedder dies.
//!
//! The parent-death signal reaches a guest's first process alone. The guardian holds one end of a socket
//! pair whose other end the embedder has, and the `cgroup.kill` and `cgroup.freeze` of the embedder's parent
//! group. When the embedder is gone, however it went, its read ends, it writes `1` to both, and the kernel
//! kills every process of every run. It freezes them first: a process whose first thread has ended while
//! others run on takes no signal from the kernel's kill, and then stays where it is, stopped, for the next
//! sweep to kill.
//!
//! There is one for a sandbox. It is a static program of a few dozen instructions that maps one page, and
//! it is started from a sealed memfd, so nothing has to be installed.
//!
//! What gets round it: somebody with the embedder's rights who kills the guardian as well, and a forked
//! copy of the embedder that never execs, which keeps the socket open. The next sweep is behind both.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags};

use crate::sys;

/// See the module.
#[derive(Debug)]
pub(crate) struct Guardian {
    process: Child,
    pidfd: OwnedFd,
    lifeline: UnixStream,
    /// The process that this guards: a forked copy must leave the guardian alone.
    embedder: u32,
}

/// Where the code is mapped: the usual address of a static program.
const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;

impl Guardian {
    /// Starts a guardian over the group whose open `cgroup.kill` and `cgroup.freeze` these are.
    pub(crate) fn start(kill: OwnedFd, freeze: OwnedFd) -> io::Result<Self> {
        let image = image_file()?;
        let (read, lifeline) = UnixStream::pair()?;
        let mut command = Command::new(format!("/proc/self/fd/{}", image.as_raw_fd()));
        command
            .arg0("varek-guardian")
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(read))
            .stdout(kill)
            .stderr(freeze)
            // Out of reach of what a terminal sends to the embedder's group.
            .process_group(0);
        let mut tries = 0;
        let mut process = loop {
            match command.spawn() {
                // A process that another thread has forked, and that is on its way to its exec, has the descriptor
                // that the image was written through.
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < 200 => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                process => break process?,
            }
        };
        // The guardian's end of the lifeline is its own alone.
        drop(command);
        let pidfd = Pid::from_child(&process);
        let pidfd = match rustix::process::pidfd_open(pidfd, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                // It kills a group in which nothing runs yet, and ends.
                drop(lifeline);
                let _ = process.wait();
                return Err(error.into());
            }
        };
        Ok(Self {
            process,
            pidfd,
            lifeline,
            embedder: std::process::id(),
        })
    }
}

impl Drop for Guardian {
    /// Ends it without a kill.
    fn drop(&mut self) {
        if self.embedder != std::process::id() {
            return;
        }
        // It may be gone already: no signal then, whatever thread this is.
        let _ = rustix::net::send(&self.lifeline, b"q", SendFlags::NOSIGNAL);
        // By the pidfd: a thread of the embedder that reaps everything may take the status, and a wait for it
        // would not end.
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let second = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let _ = poll(&mut fds, Some(&second));
        let _ = self.process.try_wait();
    }
}

/// The program as a sealed file that only this process can reach.
pub(crate) fn image_file() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Before Linux 6.3 there is no such flag, and every memfd can be executed.
    let file = rustix::fs::memfd_create("varek-guardian", flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create("varek-guardian", flags))?;
    let mut writer = File::from(file);
    writer.write_all(&image())?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(writer.as_fd(), seals)?;
    // A file that is open for writing cannot be executed: what is kept is open for reading alone.
    let reader = File::open(format!("/proc/self/fd/{}", writer.as_raw_fd()))?;
    // Over the stdio, which is put over 0, 1 and 2 before the exec by the image's number.
    Ok(rustix::io::fcntl_dupfd_cloexec(&reader, 3)?)
}

/// A static ELF program: one header, one segment (readable and executable), the code behind them (elf(5)).
fn image() -> Vec<u8> {
    const EM_X86_64: u16 = 62;
    const EM_AARCH64: u16 = 183;
    let machine = if cfg!(target_arch = "x86_64") {
        EM_X86_64
    } else {
        EM_AARCH64
    };
    let code = sys::guardian_code();
    let size = HEADERS + code.len() as u64;
    let mut image = Vec::with_capacity(256);
    image.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"); // 64 bits, little endian, System V
    image.extend(2_u16.to_le_bytes()); // ET_EXEC
    image.extend(machine.to_le_bytes());
    image.extend(1_u32.to_le_bytes()); // EV_CURRENT
    image.extend((BASE + HEADERS).to_le_bytes()); // e_entry
    image.extend(64_u64.to_le_bytes()); // e_phoff
    image.extend(0_u64.to_le_bytes()); // e_shoff
    image.extend(0_u32.to_le_bytes()); // e_flags
    for half in [64_u16, 56, 1, 0, 0, 0] {
        image.extend(half.to_le_bytes()); // e_ehsize, e_phentsize, e_phnum, no sections
    }
    image.extend(1_u32.to_le_bytes()); // PT_LOAD
    image.extend(5_u32.to_le_bytes()); // PF_R | PF_X
    for word in [0, BASE, BASE, size, size, 0x1_0000] {
        image.extend(word.to_le_bytes()); // p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align
    }
    image.extend(code);
    image
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use rustix::pipe::PipeFlags;

    use super::*;

    /// A guardian whose kill and freeze files are pipes, so that its writes can be seen.
    fn guarded() -> (Guardian, [File; 2]) {
        let (kill, kill_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (freeze, freeze_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let guardian = Guardian::start(kill_end, freeze_end).unwrap();
        (guardian, [File::from(kill), File::from(freeze)])
    }

    fn written(to: [File; 2]) -> [String; 2] {
        to.map(|mut pipe| {
            let mut text = String::new();
            pipe.read_to_string(&mut text).unwrap();
            text
        })
    }

    #[test]
    fn the_guardian_writes_a_kill_when_the_lifeline_breaks_and_then_exits() {
        let (mut guardian, files) = guarded();
        // The only write end goes, as with the embedder's death.
        guardian.lifeline = UnixStream::pair().unwrap().0;
        assert_eq!(written(files), ["1", "1"]);
        assert!(guardian.process.wait().unwrap().success());
    }

    #[test]
    fn a_dismissed_guardian_kills_nothing() {
        let (guardian, files) = guarded();
        drop(guardian);
        assert_eq!(written(files), ["", ""]);
    }
}
