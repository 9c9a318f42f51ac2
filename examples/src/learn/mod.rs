//! The smallest policy that a program needs, learnt by watching it.
//!
//! Nothing is confined here: every call of the program and of all that it starts is reported to this process (seccomp user notification,
//! seccomp_unotify(2)), which writes it down and lets it go on. **Run only what you trust.** The exceptions are the calls that VAREK refuses under
//! every policy, such as `clone3`, `io_uring_setup` and namespaces: they fail as they do for a guest, so that what is learnt is the way that
//! the program takes then.
//!
//! What is learnt is what this one run did. Another input takes other ways: learn from a run that does everything that it is to do.

use std::fmt::Write as _;

use anyhow::Context as _;
use varek_core::{Network, Policy};

mod calls;
mod fold;
mod image;
mod policy;
mod record;
#[expect(
    unsafe_code,
    reason = "the module of this name is where system calls are made"
)]
mod sys;
mod trace;
mod tracee;

pub use policy::{Difference, Learnt, learnt};
pub use record::{Observed, Reach, Sockets, Uses};
pub use trace::{Run, Trace, supported, trace};

impl Learnt {
    /// The policy as TOML, which reads back as [`Policy`].
    ///
    /// # Errors
    ///
    /// Where a path is no UTF-8, which TOML cannot say.
    pub fn toml(&self) -> anyhow::Result<String> {
        let text = toml::to_string_pretty(&self.policy)
            .context("the policy has something that TOML cannot say")?;
        let back: Policy = toml::from_str(&text).context("the policy does not read back")?;
        anyhow::ensure!(back == self.policy, "the policy reads back as another");
        Ok(text)
    }

    /// The notes and the difference, each line a comment of TOML. With `unused`, the preset's calls that were not made are named
    /// and not only counted.
    pub fn summary(&self, unused: bool) -> String {
        let mut text = String::new();
        for note in &self.notes {
            let _ = writeln!(text, "# note: {note}");
        }
        let difference = &self.difference;
        let preset = difference.preset;
        if difference.is_covered() {
            let _ = writeln!(text, "# preset {preset}: has all of it");
        }
        for call in &difference.calls {
            let _ = writeln!(text, "# preset {preset} lacks: {call}");
        }
        for (what, paths) in ["read", "write", "execute"]
            .into_iter()
            .zip(&difference.paths)
        {
            for path in paths {
                let _ = writeln!(
                    text,
                    "# preset {preset} does not {what}: {}",
                    path.display()
                );
            }
        }
        if difference.network {
            let network = match &self.policy.network {
                Network::Tcp { .. } => "TCP",
                _ => "the host's network",
            };
            let _ = writeln!(text, "# preset {preset} does not reach: {network}");
        }
        let count = difference.unused.len();
        let _ = if unused {
            let names = difference.unused.join(", ");
            writeln!(
                text,
                "# preset {preset} has {count} calls that were not made: {names}"
            )
        } else {
            writeln!(
                text,
                "# preset {preset} has {count} calls that were not made (--unused names them)"
            )
        };
        text
    }
}

#[cfg(test)]
mod tests;
