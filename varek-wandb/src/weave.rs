//! Sandboxed runs as calls in W&B Weave.

use varek_telemetry::{Otlp, OtlpError};

use crate::{Error, Mode, Run};

/// Where the hosted service takes spans; others take them beneath their own address.
const HOSTED: (&str, &str) = (
    "https://api.wandb.ai",
    "https://trace.wandb.ai/otel/v1/traces",
);

impl Run {
    /// A sink that sends each sandboxed run to Weave as one span, an `execute_tool`, linked to this run (`wandb.wb_run_id`). It is beside
    /// [`Run::sink`], and independent of it: what Weave does not take is lost, and [`Sink::fault`](varek_telemetry::Sink::fault) says so; the
    /// log has none of it.
    ///
    /// Spans go to the project of this run by OTLP over HTTP, with the run's key. A span is an error where the sandboxed run met a boundary
    /// or failed. Certificates are the host's: [`RunBuilder::root_certificates`](crate::RunBuilder::root_certificates) is not for this. Source: Weave's
    /// documentation of its OpenTelemetry endpoint.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] where the run is not online, or its entity is not known: name it (`WANDB_ENTITY`), or wait until [`Run::url`] is there, by
    /// which time the server has said it. [`Error::Finished`], [`Error::Forked`], and [`Error::Io`] where the host refuses a thread.
    pub fn weave(&self) -> Result<Otlp, Error> {
        drop(self.shared.state()?);
        let settings = &self.shared.facts.settings;
        let key = match &settings.api_key {
            Some(key) if settings.mode == Mode::Online => &key.0,
            _ => {
                return Err(Error::Setting {
                    setting: "WANDB_MODE",
                    found: "offline or disabled".into(),
                    allowed: "online, with a key: Weave has no log that could be sent later",
                });
            }
        };
        let Some((entity, project)) = self.place() else {
            return Err(Error::Setting {
                setting: "WANDB_ENTITY",
                found: String::new(),
                allowed: "the user or team whose project it is: the server has not said it yet",
            });
        };
        let base = settings.base_url.trim_end_matches('/');
        let endpoint = match HOSTED {
            (hosted, traces) if base == hosted => traces.to_owned(),
            _ => format!("{base}/traces/otel/v1/traces"),
        };
        let run = format!("{entity}/{project}/{}", self.id());
        Otlp::to(endpoint.clone())
            .header("wandb-api-key", key)
            .resource("wandb.entity", entity)
            .resource("wandb.project", project)
            .attribute("wandb.wb_run_id", run)
            .start()
            .map_err(|error| match error {
                OtlpError::Thread { source } => Error::Io {
                    operation: "start a thread for",
                    path: endpoint.into(),
                    source,
                },
                _ => Error::Setting {
                    setting: "WANDB_BASE_URL",
                    found: endpoint,
                    allowed: "an address that spans can be sent to, and a key of ASCII characters",
                },
            })
    }
}
