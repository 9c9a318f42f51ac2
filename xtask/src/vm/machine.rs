//! One boot: the initramfs with the job, the machine, its output and its end.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context, Result, ensure};

use super::cpio::Archive;
use super::kernel::{Cache, Image};
use super::modules;
use super::programs::{Program, Programs};
use super::report::{Collector, Outcome};
use super::rows::Row;
use crate::process;
use crate::workspace::Workspace;

/// The guest's scripts, in `xtask/vm`, that the job takes along.
const SCRIPTS: [&str; 5] = ["stage2", "systemd", "tests", "container", "outer-filter"];
/// The example of a unit, which is tried where systemd is process 1.
const UNIT: &str = "contrib/embedder.service";
/// The script on this side.
const MACHINE: &str = "xtask/vm/machine";

/// What of the caller's environment the tests see.
const PASSED_ON: [&str; 3] = ["VAREK_", "RUST_", "PROPTEST_"];

/// How many cases a property is tried with, unless it says so itself or the caller does.
const CASES: &str = "PROPTEST_CASES";
const CASES_IN_A_MACHINE: u32 = 32;

/// How long a machine of a second or two may take where the processor runs it.
const TRIAL: Duration = Duration::from_secs(15);

/// How much of each log is shown of a machine that stopped before its end.
const LAST_LINES: usize = 15;

/// The programs that run a machine.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) qemu: PathBuf,
    pub(crate) busybox: PathBuf,
    pub(crate) virtiofsd: PathBuf,
    /// How the file server confines itself: as root by chroot, else not at all.
    pub(crate) sandbox: &'static str,
    pub(crate) cache: Cache,
    /// Tried once, with the first machine.
    pub(crate) acceleration: OnceLock<Acceleration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acceleration {
    Kvm,
    Emulation,
}

/// What is run in a machine, and for how long at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job<'j> {
    pub(crate) workspace: &'j Workspace,
    pub(crate) programs: &'j Programs,
    /// The disk with the root file system, where it is not the host's.
    pub(crate) disk: Option<&'j Path>,
    pub(crate) arguments: &'j [String],
    pub(crate) require_all: bool,
    pub(crate) processors: usize,
    /// For one test program.
    pub(crate) program_limit: Duration,
    /// For the whole row.
    pub(crate) limit: Duration,
}

impl Rig {
    /// Boots the row, hands over each line of output as it comes, and says what came of it.
    pub(crate) fn run(
        &self,
        row: &Row,
        image: &Image,
        job: &Job<'_>,
        mut line: impl FnMut(&str),
    ) -> Result<Outcome> {
        let deadline = Instant::now() + job.limit;
        let directory = Scratch::new(&self.cache.directory)?;
        let initramfs = self.initramfs(row, image, job)?;
        write(&directory.path.join("initramfs"), &initramfs)?;
        let acceleration = if let Some(known) = self.acceleration.get() {
            *known
        } else {
            let found = self.accelerate(image, job.workspace, &directory.path)?;
            *self.acceleration.get_or_init(|| found)
        };

        let mut command = Command::new("sh");
        command.arg(job.workspace.root.join(MACHINE));
        command
            .arg(&directory.path)
            .arg(&self.virtiofsd)
            .arg(self.sandbox);
        command
            .arg(&self.qemu)
            .args(arguments(row, image, job, &directory.path))
            .args(["-accel", acceleration.word()]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot start a shell")?;
        // Closed, this pipe ends the machine; also where this process is killed.
        let hold = child.stdin.take();
        let output = child.stdout.take().context("the shell has no output")?;

        let (sender, lines) = mpsc::channel();
        let reader = thread::spawn(move || {
            // Split by bytes, not by `lines`: what a guest prints need not be UTF-8.
            for bytes in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender
                    .send(String::from_utf8_lossy(&bytes).into_owned())
                    .is_err()
                {
                    break;
                }
            }
        });
        let mut collector = Collector::new(&job.programs.tests);
        let mut ended = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left) {
                Ok(text) => {
                    collector.line(&text);
                    line(&text);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    ended = Some(format!(
                        "the machine was ended at its time limit of {} minutes",
                        job.limit.as_secs() / 60
                    ));
                    break;
                }
            }
        }
        let read = |name: &str| {
            let bytes = fs::read(directory.path.join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let report = read("report");
        if ended.is_none() && !report.lines().any(|line| line.starts_with("end ")) {
            ended = Some("the machine stopped before its end".to_owned());
        }
        if ended.is_some() {
            for name in ["qemu.log", "virtiofsd.log", "console"] {
                last_lines(&read(name)).for_each(|text| line(&format!("{name}: {text}")));
            }
        }
        drop(hold);
        child.wait().context("cannot wait for the machine")?;
        let _ = reader.join();
        Ok(collector.finish(&report, ended.as_deref()))
    }

    /// Whether the processor's own support can be used. That its device opens says little: nested in
    /// another machine it may accept everything and run nothing. So a boot is tried, once for each
    /// boot of the host.
    fn accelerate(
        &self,
        image: &Image,
        workspace: &Workspace,
        directory: &Path,
    ) -> Result<Acceleration> {
        let device = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/kvm");
        if device.is_err() {
            return Ok(Acceleration::Emulation);
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let verdict = self.cache.directory.join("kvm-does-not-work");
        if fs::read_to_string(&verdict).is_ok_and(|found| found == boot) {
            return Ok(Acceleration::Emulation);
        }
        let initramfs = directory.join("trial");
        write(&initramfs, &self.stage1(image, &workspace.root)?.finish())?;
        let mut trial = Command::new("timeout");
        trial
            .args(["-k", "1", &TRIAL.as_secs().to_string()])
            .arg(&self.qemu);
        trial.args("-accel kvm -cpu max -m 256 -display none -no-reboot -nodefaults".split(' '));
        trial.args(["-append", "quiet panic=-1 vm.trial", "-kernel"]);
        trial.arg(&image.kernel).arg("-initrd").arg(&initramfs);
        if process::succeeds(&mut trial) {
            return Ok(Acceleration::Kvm);
        }
        write(&verdict, boot.as_bytes())?;
        Ok(Acceleration::Emulation)
    }

    fn initramfs(&self, row: &Row, image: &Image, job: &Job<'_>) -> Result<Vec<u8>> {
        let mut archive = self.stage1(image, &job.workspace.root)?;
        archive.directory("job");
        for name in SCRIPTS {
            let script = read(&job.workspace.root.join("xtask/vm").join(name))?;
            archive.file(&format!("job/{name}"), true, &script);
        }
        let unit = read(&job.workspace.root.join(UNIT))?;
        archive.file("job/example.service", false, &unit);
        archive.file("job/job", false, script(row, job)?.as_bytes());
        Ok(archive.finish())
    }

    /// Everything that every boot needs.
    fn stage1(&self, image: &Image, root: &Path) -> Result<Archive> {
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.file("bin/busybox", true, &read(&self.busybox)?);
        archive.file("init", true, &read(&root.join("xtask/vm/init"))?);
        archive.directory("modules");
        let list = read(&image.modules.join("modules.dep"))?;
        let list = String::from_utf8_lossy(&list);
        let mut order = String::new();
        for path in modules::load_order(&list) {
            let (content, file) = self.module(&image.modules.join(path))?;
            archive.file(&format!("modules/{file}"), false, &content);
            order.push_str(&file);
            order.push('\n');
        }
        ensure!(!order.is_empty(), "the kernel has no module that is needed");
        archive.file("modules/order", false, order.as_bytes());
        Ok(archive)
    }

    /// A module's bytes and file name, unpacked: stage 1 can load no other.
    fn module(&self, path: &Path) -> Result<(Vec<u8>, String)> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(plain) = name.strip_suffix(".xz") else {
            return Ok((read(path)?, name.into_owned()));
        };
        let output = Command::new(&self.busybox)
            .arg("xzcat")
            .arg(path)
            .stdin(Stdio::null())
            .output()
            .context("cannot start busybox")?;
        ensure!(output.status.success(), "cannot unpack {}", path.display());
        Ok((output.stdout, plain.to_owned()))
    }
}

/// Those of qemu, but for the acceleration.
fn arguments(row: &Row, image: &Image, job: &Job<'_>, directory: &Path) -> Vec<String> {
    let memory = memory(job.processors);
    let at = |name: &str| directory.join(name).display().to_string();
    let mut words: Vec<String> = Vec::new();
    let mut add = |text: &str| words.extend(text.split_whitespace().map(str::to_owned));
    add("-cpu max -M pc -display none -no-reboot -nodefaults -no-user-config");
    add(&format!("-m {memory} -smp {}", job.processors));
    add("-device virtio-rng-pci -device virtio-serial-pci");
    add("-device virtserialport,chardev=out,name=vm.out");
    add("-device virtserialport,chardev=report,name=vm.report");
    add(&format!(
        "-object memory-backend-memfd,id=memory,size={memory}M,share=on"
    ));
    add("-numa node,memdev=memory");
    add("-device vhost-user-fs-pci,chardev=host,tag=host");
    // A comma in a path would end the option's value.
    let option = |path: String| path.replace(',', ",,");
    for (flag, value) in [
        ("-chardev", "file,id=out,path=/dev/stdout".to_owned()),
        (
            "-chardev",
            format!("file,id=report,path={}", option(at("report"))),
        ),
        (
            "-chardev",
            format!("socket,id=host,path={}", option(at("host.sock"))),
        ),
        ("-serial", format!("file:{}", at("console"))),
        ("-kernel", image.kernel.display().to_string()),
        ("-initrd", at("initramfs")),
        (
            "-append",
            // On a busy host an emulated timer is late, which the kernel's own check takes for a broken one.
            format!(
                "console=ttyS0 quiet panic=-1 no_timer_check {} {}",
                row.root.words(),
                row.command_line
            ),
        ),
    ] {
        words.extend([flag.to_owned(), value]);
    }
    if let Some(disk) = job.disk {
        let file = option(disk.display().to_string());
        let drive = format!("file={file},if=virtio,format=raw,readonly=on");
        words.extend(["-drive".to_owned(), drive]);
    }
    words
}

/// A machine's memory, in MiB.
pub(crate) fn memory(processors: usize) -> u32 {
    let processors = u32::try_from(processors).unwrap_or(u32::MAX);
    processors.saturating_mul(512).saturating_add(1024)
}

impl Acceleration {
    /// As qemu takes it behind `-accel`.
    fn word(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Emulation => "tcg,thread=multi,tb-size=512",
        }
    }
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn last_lines(text: &str) -> impl Iterator<Item = &str> {
    let skipped = text.lines().count().saturating_sub(LAST_LINES);
    text.lines().skip(skipped)
}

/// The job as shell text, which the guest's scripts read.
fn script(row: &Row, job: &Job<'_>) -> Result<String> {
    let quoted = |path: &Path| {
        let text = path
            .to_str()
            .with_context(|| format!("{} is no UTF-8", path.display()))?;
        Ok::<_, anyhow::Error>(process::quoted(text.as_ref()))
    };
    let mut lines = vec![
        format!("ROW={}", row.name),
        format!("PLACE={}", row.place.word()),
        format!("CGROUPS={}", if row.groups { "unified" } else { "none" }),
        format!(
            "SYSCTLS={}",
            process::quoted(row.sysctls.join(" ").as_ref())
        ),
        format!("LIMIT={}", job.program_limit.as_secs()),
        format!(
            "WITH_GROUP={}",
            quoted(&job.workspace.root.join("scripts/with-cgroup.sh"))?
        ),
        format!(
            "DOCTOR={}",
            job.programs
                .doctor
                .as_deref()
                .map_or(Ok("''".to_owned()), quoted)?
        ),
    ];
    let cargo = env::var_os("CARGO").map(PathBuf::from);
    let mut open: Vec<&Path> = vec![&job.workspace.root, &job.workspace.target];
    open.extend(cargo.as_deref());
    lines.push("reachable() {".to_owned());
    for directory in ancestors(&open) {
        lines.push(format!("    chmod a+x {}", quoted(directory)?));
    }
    lines.push("}".to_owned());

    for (name, value) in env::vars() {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let wanted = PASSED_ON.iter().any(|start| name.starts_with(start)) || name == "CARGO";
        if wanted && name.chars().all(plain) {
            lines.push(format!("export {name}={}", process::quoted(value.as_ref())));
        }
    }
    // What is drawn at random does not depend on the kernel: the host draws more of it, faster.
    if env::var_os(CASES).is_none() {
        lines.push(format!("export {CASES}={CASES_IN_A_MACHINE}"));
    }
    if job.require_all {
        lines.push("export VAREK_TEST_REQUIRE=all".to_owned());
    }
    lines.push("arguments() {".to_owned());
    let arguments = job
        .arguments
        .iter()
        .map(|word| process::quoted(word.as_ref()));
    let arguments: Vec<_> = [r#""$@""#.to_owned()]
        .into_iter()
        .chain(arguments)
        .collect();
    lines.extend([format!("    {}", arguments.join(" ")), "}".to_owned()]);
    lines.push("programs() {".to_owned());
    lines.push("    :".to_owned());
    for (number, program) in job.programs.tests.iter().enumerate() {
        let Program {
            label,
            directory,
            path,
        } = program;
        lines.push(format!(
            "    program {number} {} {} {}",
            process::quoted(label.as_ref()),
            quoted(directory)?,
            quoted(path)?
        ));
    }
    lines.extend(["}".to_owned(), String::new()]);
    Ok(lines.join("\n"))
}

/// The directories above these paths, the paths included, from the root on and each once.
fn ancestors<'p>(paths: &[&'p Path]) -> Vec<&'p Path> {
    let mut all: Vec<&Path> = paths.iter().flat_map(|path| path.ancestors()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A directory for the files of one boot. The script on this side removes it; where that was never
/// started, this does.
#[derive(Debug)]
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(parent: &Path) -> Result<Self> {
        let mut make = Command::new("mktemp");
        make.arg("-d").arg(parent.join("vm.XXXXXXXX"));
        let output = make
            .stdin(Stdio::null())
            .output()
            .context("cannot start mktemp")?;
        ensure!(
            output.status.success(),
            "cannot create a directory in {}",
            parent.display()
        );
        let path = String::from_utf8_lossy(&output.stdout);
        Ok(Self {
            path: PathBuf::from(path.trim_end()),
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
