//! What this host offers, what each preset gets of it, and what to do about the rest.

use serde::Serialize;
use varek_core::{Enforcement, Error, Fact, Host, Layer, LayerStatus, Missing, Policy, Sandbox};

use crate::evidence;
use crate::terminal::{Cell, Column, Style, table};

/// Everything that the doctor found.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// The host's facts.
    pub host: Host,
    /// The same for people, each with what to do where it takes something away.
    pub facts: Vec<Fact>,
    /// Every preset.
    pub presets: Vec<Preset>,
    /// What to do, each thing once.
    pub remedies: Vec<Remedy>,
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
    /// What would be in force with the missing layers named in `best_effort`, where a sandbox can be made of that.
    pub best_effort: Option<BestEffort>,
    /// Why no sandbox can be made, where it is not what the host lacks.
    pub error: Option<String>,
}

/// A preset with layers as best effort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BestEffort {
    /// The layers that `best_effort` has to name.
    pub layers: Vec<Layer>,
    /// What would be in force.
    pub enforcement: Enforcement,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// What to do.
    pub remedy: String,
    /// The facts and layers that it is for.
    pub concerns: Vec<String>,
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
            .map(|(name, policy)| Preset::examine(name, &policy, &host))
            .collect();
        Self::of(host, presets)
    }

    fn of(host: Host, presets: Vec<Preset>) -> Self {
        let facts = host.facts();
        let remedies = remedies(&facts, &presets);
        Self {
            host,
            facts,
            presets,
            remedies,
        }
    }

    /// Whether every preset can be used.
    pub fn healthy(&self) -> bool {
        self.presets.iter().all(|preset| preset.ready)
    }

    /// The text for people.
    pub fn render(&self, style: Style) -> String {
        let facts = self.facts.iter().map(|fact| {
            let value = match fact.remedy {
                None => Cell::new(&fact.value),
                Some(_) => Cell::verdict(false, &fact.value),
            };
            vec![Cell::new(fact.name), value]
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
        if !self.remedies.is_empty() {
            let rows = self.remedies.iter().map(|remedy| {
                let concerns = Cell::new(remedy.concerns.join(", "));
                vec![Cell::new(&remedy.remedy), concerns]
            });
            let columns = [Column::text("what to do"), Column::text("for")];
            text.push_str("\n\n");
            text.push_str(&table(style, &columns, rows));
        }
        text
    }
}

/// Each thing to do once: of the facts, then what is left of the presets. What a layer needs beyond the remedy of a
/// fact (a word in `best_effort`) is in its own text.
fn remedies(facts: &[Fact], presets: &[Preset]) -> Vec<Remedy> {
    let mut found: Vec<Remedy> = Vec::new();
    let facts = facts
        .iter()
        .filter_map(|fact| Some((fact.name.to_owned(), fact.remedy.as_ref()?)));
    let missing = presets
        .iter()
        .flat_map(|preset| &preset.missing)
        .map(|lack| (lack.layer.clone(), &lack.remedy));
    for (concern, remedy) in facts.chain(missing) {
        let known = found
            .iter_mut()
            .find(|known| remedy.contains(&known.remedy));
        match known {
            Some(known) if known.concerns.contains(&concern) => {}
            Some(known) => known.concerns.push(concern),
            None => found.push(Remedy {
                remedy: remedy.clone(),
                concerns: vec![concern],
            }),
        }
    }
    found
}

impl BestEffort {
    /// The policy with these layers as best effort, where that helps.
    fn examine(policy: &Policy, missing: &[Missing], host: &Host) -> Option<Self> {
        let layers: Vec<Layer> = missing.iter().map(|missing| missing.layer).collect();
        let lenient = layers.iter().copied();
        let lenient = lenient.fold(policy.clone(), Policy::best_effort);
        let sandbox = Sandbox::builder(lenient).host(host.clone()).build().ok()?;
        Some(Self {
            layers,
            enforcement: sandbox.enforcement().clone(),
        })
    }
}

impl Preset {
    /// Examines one policy against these facts. Makes a sandbox of it where that can be, and runs nothing.
    pub fn examine(name: &'static str, policy: &Policy, host: &Host) -> Self {
        let digest = policy.digest();
        let result = Sandbox::builder(policy.clone()).host(host.clone()).build();
        let best_effort = match &result {
            Err(Error::Unsupported { missing }) => BestEffort::examine(policy, missing, host),
            _ => None,
        };
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
            best_effort,
            error,
        }
    }

    fn render(&self, style: Style) -> String {
        let title = format!("preset {}", self.name);
        if self.ready {
            return in_force(style, &title, "what is in force", &self.enforcement);
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
        let columns = [
            Column::whole(&title),
            Column::text("why it cannot be used here"),
        ];
        let mut text = table(style, &columns, rows);
        if let Some(BestEffort {
            layers,
            enforcement,
        }) = &self.best_effort
        {
            let layers: Vec<String> = layers.iter().map(ToString::to_string).collect();
            let what = format!(
                "what would be in force with best_effort = {}",
                layers.join(", ")
            );
            text.push_str("\n\n");
            text.push_str(&in_force(style, &title, &what, enforcement));
        }
        text
    }
}

fn in_force(style: Style, title: &str, what: &str, enforcement: &Enforcement) -> String {
    let rows = enforcement.layers().map(|(layer, status)| {
        let status = match status {
            LayerStatus::Enforced { detail } => Cell::verdict(true, format!("enforced: {detail}")),
            LayerStatus::Missing { reason } => Cell::verdict(false, format!("missing: {reason}")),
            LayerStatus::NotAsked => Cell::new("not asked for"),
            other => Cell::verdict(false, format!("{other:?}")),
        };
        vec![Cell::new(layer.to_string()), status]
    });
    table(style, &[Column::whole(title), Column::text(what)], rows)
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
            best_effort: None,
            error: None,
        };
        let diagnosis = Diagnosis::of(Host::probe(), vec![preset]);
        assert!(!diagnosis.healthy());
        let text = diagnosis.render(Style {
            colour: false,
            width: Some(100),
        });
        assert!(text.contains("to do: boot with lsm=landlock"), "{text}");
        assert!(text.contains("kernel"), "{text}");
    }

    #[test]
    fn each_thing_to_do_is_said_once_and_with_all_that_it_is_for() {
        let lack = |layer: &str, remedy: &str| Lack {
            layer: layer.into(),
            asked: String::new(),
            has: String::new(),
            remedy: remedy.into(),
        };
        let preset = |name| Preset {
            name,
            policy: String::new(),
            ready: false,
            enforcement: Enforcement::default(),
            missing: vec![
                lack("memory", "delegate it, or name memory in best_effort"),
                lack("watchdog", "delegate it"),
                lack("landlock", "boot with it"),
            ],
            best_effort: None,
            error: None,
        };
        let mut facts = Host::probe().facts();
        facts.truncate(2);
        facts[0].remedy = Some("delegate it".into());
        facts[1].remedy = None;
        let found = remedies(&facts, &[preset("python"), preset("native")]);
        let found: Vec<_> = found
            .iter()
            .map(|found| (found.remedy.as_str(), found.concerns.join(", ")))
            .collect();
        let first = format!("{}, memory, watchdog", facts[0].name);
        assert_eq!(
            found,
            [
                ("delegate it", first),
                ("boot with it", "landlock".to_owned())
            ]
        );
    }
}
