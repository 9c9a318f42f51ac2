//! What this host offers, what each preset gets of it, and what to do about the rest.

use serde::Serialize;
use varek_core::{Enforcement, Error, Host, LayerStatus, Missing, Policy, Sandbox};

use crate::evidence;
use crate::terminal::{Cell, Column, Style, table};

/// Everything that the doctor found.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// The host's facts.
    pub host: Host,
    /// Every preset.
    pub presets: Vec<Preset>,
}

/// What one preset gets.
#[derive(Clone, Debug, Serialize)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// Its digest.
    pub policy: String,
    /// Whether a sandbox can be made of it.
    pub ready: bool,
    /// What would be in force; empty where no sandbox can be made.
    pub enforcement: Enforcement,
    /// What the host lacks.
    pub missing: Vec<Lack>,
    /// Why no sandbox can be made, where it is not what the host lacks.
    pub error: Option<String>,
}

/// One thing that the host lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lack {
    /// The layer.
    pub layer: String,
    /// What the policy asked.
    pub asked: String,
    /// What the host has.
    pub has: String,
    /// What to do.
    pub remedy: String,
}

impl From<&Missing> for Lack {
    fn from(missing: &Missing) -> Self {
        let Missing {
            layer,
            asked,
            has,
            remedy,
            ..
        } = missing.clone();
        Self {
            layer: layer.to_string(),
            asked,
            has,
            remedy,
        }
    }
}

impl Diagnosis {
    /// Examines this host. Makes a sandbox of each preset and runs nothing in it.
    pub fn examine() -> Self {
        let host = Host::probe();
        let presets = Policy::PRESETS
            .iter()
            .filter_map(|name| Some((*name, Policy::preset(name)?)))
            .map(|(name, policy)| Preset::examine(name, policy, &host))
            .collect();
        Self { host, presets }
    }

    /// Whether every preset can be used.
    pub fn healthy(&self) -> bool {
        self.presets.iter().all(|preset| preset.ready)
    }

    /// The text for people.
    pub fn render(&self, style: Style) -> String {
        let facts = self.host.to_string();
        let facts = facts.lines().map(|line| {
            let (name, value) = line.split_once("  ").unwrap_or((line, ""));
            vec![Cell::new(name.trim()), Cell::new(value.trim())]
        });
        let mut text = table(
            style,
            &[Column::whole("this host"), Column::text("")],
            facts,
        );
        for preset in &self.presets {
            text.push_str("\n\n");
            text.push_str(&preset.render(style));
        }
        text
    }
}

impl Preset {
    fn examine(name: &'static str, policy: Policy, host: &Host) -> Self {
        let digest = policy.digest();
        let result = Sandbox::builder(policy).host(host.clone()).build();
        let (enforcement, missing, error) = match &result {
            Ok(sandbox) => (sandbox.enforcement().clone(), Vec::new(), None),
            Err(Error::Unsupported { missing }) => (
                Enforcement::default(),
                missing.iter().map(Lack::from).collect(),
                None,
            ),
            Err(error) => (
                Enforcement::default(),
                Vec::new(),
                Some(evidence::chain(error)),
            ),
        };
        Self {
            name,
            policy: digest,
            ready: result.is_ok(),
            enforcement,
            missing,
            error,
        }
    }

    fn render(&self, style: Style) -> String {
        let headers = |what| [format!("preset {}", self.name), what];
        if self.ready {
            let rows = self.enforcement.layers().map(|(layer, status)| {
                let (good, text) = match status {
                    LayerStatus::Enforced { detail } => (true, format!("enforced: {detail}")),
                    LayerStatus::Missing { reason } => (false, format!("missing: {reason}")),
                    LayerStatus::NotAsked => {
                        return vec![Cell::new(layer.to_string()), Cell::new("not asked for")];
                    }
                    other => (false, format!("{other:?}")),
                };
                vec![Cell::new(layer.to_string()), Cell::verdict(good, text)]
            });
            let [name, what] = headers("what is in force".to_owned());
            return table(style, &[Column::whole(&name), Column::text(&what)], rows);
        }
        let mut rows: Vec<_> = self
            .missing
            .iter()
            .map(|lack| {
                let text = format!(
                    "asked {}; the host {}\nto do: {}",
                    lack.asked, lack.has, lack.remedy
                );
                vec![Cell::new(lack.layer.clone()), Cell::verdict(false, text)]
            })
            .collect();
        rows.extend(
            self.error
                .iter()
                .map(|error| vec![Cell::new("error"), Cell::verdict(false, error)]),
        );
        let [name, what] = headers("why it cannot be used here".to_owned());
        table(style, &[Column::whole(&name), Column::text(&what)], rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_that_cannot_be_used_shows_the_remedy() {
        let lack = Lack {
            layer: "landlock".into(),
            asked: "path rules".into(),
            has: "has no Landlock".into(),
            remedy: "boot with lsm=landlock".into(),
        };
        let preset = Preset {
            name: "python",
            policy: String::new(),
            ready: false,
            enforcement: Enforcement::default(),
            missing: vec![lack],
            error: None,
        };
        let diagnosis = Diagnosis {
            host: Host::probe(),
            presets: vec![preset],
        };
        assert!(!diagnosis.healthy());
        let text = diagnosis.render(Style {
            colour: false,
            width: Some(100),
        });
        assert!(text.contains("to do: boot with lsm=landlock"), "{text}");
        assert!(text.contains("kernel"), "{text}");
    }
}
