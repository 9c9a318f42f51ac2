//! The presets: policies for what people run.

use crate::SyscallPolicy;
use crate::filesystem::Filesystem;
use crate::limits::GIB;
use crate::policy::Policy;

/// For runtimes that start a thread for each processor of the machine: OpenBLAS has up to 64 or 128 at the import of NumPy, Go
/// and rayon as many as there are processors. What cannot be started ends such programs.
const THREADS: u64 = 256;

/// The JVM starts some three threads for each processor (garbage collection, compilers, common pool).
const JVM_THREADS: u64 = 512;

/// What the JVM's launcher adds to its command line (JDK 9 or later).
///
/// `MaxRAM`: the JVM sizes its heap by the memory of the machine, of which a run has a small part, and lets garbage pile up to a
/// quarter of it; a program of no size of its own would be out of memory. `java.io.tmpdir`: it does not read `TMPDIR`.
const JVM_OPTIONS: &str = "-XX:MaxRAM=1g -Djava.io.tmpdir=.";

impl Policy {
    /// For CPython: its standard library and packages such as NumPy, pandas and Matplotlib, without network and without exec; files
    /// in scratch, threads and forks. Limits as [`Limits::default`](crate::Limits::default), but 256 pids.
    ///
    /// A virtual environment is run by its own interpreter, and granted as a whole:
    ///
    /// ```
    /// use varek_core::{Command, Policy};
    ///
    /// let policy = Policy::python().execute("/srv/analysis/venv");
    /// let command = Command::new("/srv/analysis/venv/bin/python").arg("main.py").file("main.py", "import numpy");
    /// # assert_eq!(policy.problems(), []);
    /// # drop(command);
    /// ```
    pub fn python() -> Self {
        Self::new(SyscallPolicy::python(), Filesystem::python()).pids(THREADS)
    }

    /// For compiled programs (C, C++, Rust, Go), static or dynamic: files in scratch, threads and forks,
    /// no network and no exec. Limits as [`Limits::default`](crate::Limits::default), but 256 pids.
    pub fn native() -> Self {
        Self::new(SyscallPolicy::native(), Filesystem::native()).pids(THREADS)
    }

    /// For Node.js: files in scratch, workers, WebAssembly, timers, `node:crypto`; without network, children and exec.
    /// Limits as [`Limits::default`](crate::Limits::default), but 256 pids.
    ///
    /// V8 reserves more address space than a run may use memory, which the memory limit does not count. With `child_process`:
    ///
    /// ```
    /// use varek_core::{Policy, SyscallPolicy};
    ///
    /// let policy = Policy::node().syscalls(|_| SyscallPolicy::shell());
    /// # assert_eq!(policy.problems(), []);
    /// ```
    pub fn node() -> Self {
        Self::new(SyscallPolicy::node(), Filesystem::node()).pids(THREADS)
    }

    /// For bash, dash and other shells with what they start: coreutils, Python, Perl, Git, compilers; pipelines, job control,
    /// scripts and programs in scratch; no network. Limits as [`Limits::default`](crate::Limits::default), but 256 pids.
    ///
    /// The guest may start programs, as many as it likes within its limits, and every one of them is under the same filter, rules
    /// and limits. Which files are programs is bounded by [`Filesystem::execute`], which code runs is not: see
    /// [`Filesystem::shell`]. What a policy without exec gives beyond that is that nothing but the program itself ever runs.
    ///
    /// `GIT_CONFIG_NOSYSTEM` is set: the machine's `/etc/gitconfig` may hold passwords, is not granted, and would end Git.
    pub fn shell() -> Self {
        Self::new(SyscallPolicy::shell(), Filesystem::shell())
            .pids(THREADS)
            .env("GIT_CONFIG_NOSYSTEM", "1")
    }

    /// For the JVM: class files and jars, threads, garbage collection, zip files; without network, children and exec. Limits as
    /// [`Limits::default`](crate::Limits::default), but 1 GiB of memory and 512 pids.
    ///
    /// `JDK_JAVA_OPTIONS` is set to `-XX:MaxRAM=1g -Djava.io.tmpdir=.`, of which the launcher writes a line to stderr. The JVM
    /// sizes its heap by the machine's memory and would be killed for garbage alone; with another memory limit set the variable, or `-Xmx`,
    /// to go with it. Temporary files are made in the working directory, since the JVM does not read `TMPDIR`.
    ///
    /// A program that loads `java.nio.file` asks for network sockets, is refused, and goes on: `violation` names `socket`.
    pub fn java() -> Self {
        Self::new(SyscallPolicy::java(), Filesystem::java())
            .memory(GIB)
            .pids(JVM_THREADS)
            .env("JDK_JAVA_OPTIONS", JVM_OPTIONS)
    }

    /// For a few programs of yours, and no other: the guest may start these files, as often as it likes, and nothing else ever becomes a
    /// program. System calls as in [`Policy::shell`] but `memfd_create`; no directories of programs and libraries but the files that each
    /// program needs ([`Filesystem::programs`] says what that bounds and what not). Limits as [`Limits::default`](crate::Limits::default),
    /// but 256 pids.
    ///
    /// ```
    /// use varek_core::{Command, Policy};
    ///
    /// let policy = Policy::only(["/usr/bin/sort"]).read("/srv/data");
    /// let command = Command::new("/usr/bin/sort").arg("/srv/data/names");
    /// # assert_eq!(policy.problems(), []);
    /// # drop(command);
    /// ```
    ///
    /// Where this program may not mount file systems ([`Host::mounts`](crate::Host::mounts)) the sandbox needs a base for scratch
    /// directories that is mounted `noexec` ([`SandboxBuilder::scratch_base`](crate::SandboxBuilder::scratch_base)), and is refused without.
    pub fn only(programs: impl IntoIterator<Item = impl Into<std::path::PathBuf>>) -> Self {
        let filesystem = Filesystem::only(programs);
        let mut calls = SyscallPolicy::shell().deny(["memfd_create"]);
        if filesystem.programs.is_empty() {
            // A list of nothing is not the absence of a list.
            calls = calls.deny(["execve", "execveat"]);
        }
        Self::new(calls, filesystem).pids(THREADS)
    }

    /// The preset of this name, one of [`Policy::PRESETS`].
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "python" => Some(Self::python()),
            "native" => Some(Self::native()),
            "node" => Some(Self::node()),
            "shell" => Some(Self::shell()),
            "java" => Some(Self::java()),
            _ => None,
        }
    }

    /// The names that [`Policy::preset`] knows.
    pub const PRESETS: [&str; 5] = ["python", "native", "node", "shell", "java"];
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_preset_is_a_policy_of_its_own() {
        let digests: BTreeSet<_> = Policy::PRESETS
            .iter()
            .map(|name| Policy::preset(name).unwrap().digest())
            .collect();
        assert_eq!(digests.len(), Policy::PRESETS.len());
        assert_eq!(Policy::preset("Python"), None);
    }

    #[test]
    fn only_the_shell_starts_programs_and_only_it_those_of_its_own() {
        for name in Policy::PRESETS {
            let policy = Policy::preset(name).unwrap();
            let starts = policy.syscalls.allows("execve");
            assert_eq!(starts, name == "shell", "{name}");
            assert_eq!(policy.filesystem.execute_scratch, starts, "{name}");
        }
    }

    #[test]
    fn the_jvm_is_told_of_the_memory_that_it_has() {
        let policy = Policy::java();
        let options = policy.environment.get("JDK_JAVA_OPTIONS").unwrap();
        let told = format!("-XX:MaxRAM={}g ", policy.limits.memory.unwrap() / GIB);
        assert!(options.starts_with(&told), "{options}");
    }
}
