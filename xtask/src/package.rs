//! `cargo xtask package`: the libraries as they would be published, and a new crate that is made of them and of the README alone.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::groups::Groups;
use crate::workspace::Workspace;
use crate::{process, setup, ui};

/// What each package holds beside its code.
const TEXTS: [&str; 3] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// The heading of the README's programs that are kept short, and how short.
const JOBS: &str = "## Five jobs";
const MOST_LINES: usize = 10;

/// The command.
pub(crate) fn command(workspace: &Workspace) -> Result<ExitCode> {
    setup::ensure(workspace)?;
    let groups = Groups::prepare(workspace);
    check(workspace, &groups)?;
    Ok(ExitCode::SUCCESS)
}

/// Packs and builds the libraries, and has a new crate run the programs of the README with what was packed.
pub(crate) fn check(workspace: &Workspace, groups: &Groups) -> Result<()> {
    ui::headline("Packages");
    for library in workspace.libraries() {
        let list = [
            "package",
            "--list",
            "--allow-dirty",
            "--package",
            &library.name,
        ];
        let mut list = workspace.cargo(list);
        let output = list.stderr(Stdio::inherit()).output()?;
        let files = String::from_utf8_lossy(&output.stdout);
        for text in TEXTS {
            let held = files.lines().any(|file| file == text);
            ensure!(held, "the package {} has no {text}", library.name);
        }
    }
    let mut package = workspace.cargo(["package", "--allow-dirty"]);
    for library in workspace.libraries() {
        package.args(["--package", &library.name]);
    }
    process::run(package)?;

    ui::headline("A new crate, by the README alone");
    let readme = fs::read_to_string(workspace.root.join("README.md"))?;
    let programs = programs(&readme)?;
    let place = Place::new()?;
    let krate = new_crate(workspace, &place.0, &programs)?;
    let target = workspace.target.join("new-crate");
    let mut build = cargo(&krate, ["build", "--quiet", "--bins"]);
    build.arg("--target-dir").arg(&target);
    process::run(build)?;
    for number in 0..programs.len() {
        let mut program = groups.program(target.join("debug").join(name(number)));
        // Whoever tries the README may have an account; these runs are nobody's.
        for (variable, _) in env::vars_os() {
            if variable.to_string_lossy().starts_with("WANDB_") {
                program.env_remove(variable);
            }
        }
        program.env("WANDB_MODE", "offline").current_dir(&place.0);
        process::run(program)?;
    }
    ui::say(&format!("{} programs of the README ran.", programs.len()));
    Ok(())
}

/// A directory that goes with its holder. Outside of the workspace: Cargo would take a crate in there for a member of it.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self> {
        let path = env::temp_dir().join(format!("varek-new-crate-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Nothing depends on it any more.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn name(number: usize) -> String {
    format!("readme_{number}")
}

fn cargo<const N: usize>(directory: &Path, args: [&str; N]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(directory);
    command
}

/// The commands of the README, with the packages in the place of the registry.
fn new_crate(workspace: &Workspace, place: &Path, programs: &[String]) -> Result<PathBuf> {
    process::run(cargo(
        place,
        ["new", "--quiet", "--vcs", "none", "new-crate"],
    ))?;
    let krate = place.join("new-crate");
    let packed = |name: &str| -> Result<PathBuf> {
        let version = env!("CARGO_PKG_VERSION");
        let path = workspace.target.join(format!("package/{name}-{version}"));
        ensure!(path.is_dir(), "cargo left nothing in {}", path.display());
        Ok(path)
    };
    let mut patch = vec!["[patch.crates-io]".to_owned()];
    for library in workspace.libraries() {
        let (name, path) = (&library.name, packed(&library.name)?);
        patch.push(format!("{name} = {{ path = '{}' }}", path.display()));
    }
    fs::create_dir(krate.join(".cargo"))?;
    fs::write(krate.join(".cargo/config.toml"), patch.join("\n"))?;
    for library in ["varek-core", "varek-wandb"] {
        let mut add = cargo(&krate, ["add", "--quiet", "--path"]);
        add.arg(packed(library)?);
        process::run(add)?;
    }
    let features = "macros,rt-multi-thread,time";
    process::run(cargo(
        &krate,
        ["add", "--quiet", "tokio", "--features", features],
    ))?;
    // The versions that the tests ran with, and nothing to look up.
    fs::copy(workspace.root.join("Cargo.lock"), krate.join("Cargo.lock"))?;
    fs::create_dir(krate.join("src/bin"))?;
    for (number, program) in programs.iter().enumerate() {
        fs::write(krate.join(format!("src/bin/{}.rs", name(number))), program)?;
    }
    Ok(krate)
}

/// The README's programs, as somebody copies them.
fn programs(readme: &str) -> Result<Vec<String>> {
    let mut programs = Vec::new();
    let (mut heading, mut program) = ("", None::<String>);
    let mut jobs = 0;
    for line in readme.lines() {
        match &mut program {
            None if line.starts_with("```rust") => program = Some(String::new()),
            None => {
                if line.starts_with("## ") {
                    heading = line;
                }
            }
            Some(text) if line == "```" => {
                let lines = text.lines().count();
                if heading == JOBS {
                    jobs += 1;
                    ensure!(
                        lines <= MOST_LINES,
                        "a job of the README has {lines} lines:\n{text}"
                    );
                }
                ensure!(text.contains("fn main()"), "no program:\n{text}");
                programs.extend(program.take());
            }
            Some(text) => {
                // rustdoc would hide such a line, and everybody else would copy it.
                if line.starts_with("# ") {
                    bail!("the README has a hidden line: {line}");
                }
                *text += line;
                *text += "\n";
            }
        }
    }
    ensure!(jobs == 5, "{JOBS} has {jobs} programs");
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readme(program: &str, jobs: usize) -> String {
        let block = format!("```rust,no_run\n{program}```\n");
        format!(
            "{block}{JOBS}\ntext\n{}## Other\n```console\n$ x\n```\n",
            block.repeat(jobs)
        )
    }

    #[test]
    fn programs_are_taken_as_they_stand_and_other_blocks_are_not() {
        let found = programs(&readme("fn main() {}\n", 5)).unwrap();
        assert_eq!(found, ["fn main() {}\n"; 6].map(str::to_owned));
    }

    #[test]
    fn a_job_that_is_long_missing_or_in_part_hidden_is_refused() {
        let refused =
            |program: &str, jobs| programs(&readme(program, jobs)).unwrap_err().to_string();
        assert!(refused("fn main() {}\n", 4).contains("has 4 programs"));
        let long = format!("fn main() {{\n{}}}\n", "\n".repeat(9));
        assert!(refused(&long, 5).contains("has 11 lines"));
        assert!(refused("# use a::b;\nfn main() {}\n", 5).contains("hidden line"));
        assert!(refused("let a = 1;\n", 5).contains("no program"));
    }

    #[test]
    fn the_readme_has_five_short_jobs() {
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
        assert!(
            programs(&fs::read_to_string(readme).unwrap())
                .unwrap()
                .len()
                >= 5
        );
    }
}
