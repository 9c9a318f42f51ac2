//! Where the API is, and as whom it is asked.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ureq::http::Uri;
use ureq::tls::{PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

use crate::Error;

/// A server and a key for it.
#[derive(Clone)]
pub(crate) struct Server {
    /// Without a slash at its end.
    pub(super) base_url: String,
    /// The value of the header that carries the key.
    pub(super) authorization: String,
    roots: RootCerts,
}

impl Server {
    /// A server, and the certificates that are trusted instead of the host's own.
    pub(crate) fn new(base_url: &str, api_key: &str, roots: Option<&Path>) -> Result<Self, Error> {
        let base_url = base_url.trim_end_matches('/');
        let refuse = |allowed| Error::Setting {
            setting: "WANDB_BASE_URL",
            found: base_url.to_owned(),
            allowed,
        };
        let uri: Uri = base_url
            .parse()
            .map_err(|_| refuse("an address such as https://wandb.example.com"))?;
        let host = uri.host().unwrap_or_default();
        match uri.scheme_str() {
            Some("https") if !host.is_empty() => {}
            Some("http") if is_loopback(host) => {}
            Some("http") if !host.is_empty() => {
                return Err(refuse(
                    "https://…, since the key is sent to it; plain http to this machine alone",
                ));
            }
            _ => return Err(refuse("https://HOST, or http:// with a loopback address")),
        }
        if api_key.is_empty() || !api_key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::Setting {
                setting: "WANDB_API_KEY",
                found: "a text of other characters".into(),
                allowed: "printable ASCII characters without spaces",
            });
        }
        let roots = match roots {
            None => RootCerts::PlatformVerifier,
            Some(path) => {
                let pem = fs::read(path).map_err(Error::io("read", path))?;
                let certificates: Vec<_> = parse_pem(&pem)
                    .filter_map(|item| match item {
                        Ok(PemItem::Certificate(certificate)) => Some(certificate),
                        _ => None,
                    })
                    .collect();
                if certificates.is_empty() {
                    return Err(Error::Setting {
                        setting: "root certificates",
                        found: path.display().to_string(),
                        allowed: "a file with certificates in PEM",
                    });
                }
                RootCerts::from(certificates)
            }
        };
        Ok(Self {
            base_url: base_url.to_owned(),
            authorization: format!("Basic {}", STANDARD.encode(format!("api:{api_key}"))),
            roots,
        })
    }

    pub(super) fn tls(&self) -> TlsConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .root_certs(self.roots.clone())
            .unversioned_rustls_crypto_provider(provider)
            .build()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("base_url", &self.base_url)
            .finish_non_exhaustive()
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address: Option<std::net::IpAddr> = bare.parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_sent_in_the_clear_to_another_machine() {
        let key = "k".repeat(40);
        for good in [
            "https://wandb.example.com",
            "https://wandb.example.com/path/",
            "http://127.0.0.1:8080",
            "http://localhost:8080/",
            "http://[::1]:1",
        ] {
            assert!(Server::new(good, &key, None).is_ok(), "{good}");
        }
        for bad in [
            "http://wandb.example.com",
            "http://127.0.0.1.example.com",
            "ftp://127.0.0.1",
            "wandb.example.com",
            "",
            "https://",
        ] {
            let refused = Server::new(bad, &key, None);
            assert!(matches!(refused, Err(Error::Setting { .. })), "{bad}");
        }
    }

    #[test]
    fn a_key_is_in_no_debug_output() {
        let server = Server::new("https://wandb.example.com", "s3cretkey", None).unwrap();
        let shown = format!("{server:?}");
        assert!(!shown.contains("s3cretkey") && !shown.contains(&STANDARD.encode("api:s3cretkey")));
        for bad in ["", "with space", "new\nline"] {
            assert!(Server::new("https://wandb.example.com", bad, None).is_err());
        }
    }
}
