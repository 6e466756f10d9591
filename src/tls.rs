//! TLS for all HTTP clients: which certificate authorities are trusted, and what to say about a failed handshake. Also
//! which hosts need no proxy.
//!
//! The root certificates are read again for every handshake, so that a rotated bundle needs no restart; connections
//! are kept alive, so handshakes are rare. Reading cannot block a handshake for longer than five seconds.

use std::error::Error as StdError;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::detached_io;
use crate::human::one_line;
use crate::secret::quoted;

/// Time limit for reading the root certificates.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// A client configuration that trusts the system's authorities and those of `ca_file`. No file is read before the first
/// handshake.
pub fn config(ca_file: Option<PathBuf>) -> Result<ClientConfig, rustls::Error> {
    client_config(ca_file, false)
}

/// A client configuration that accepts any certificate. For `http.sslVerify=false` and the like only.
pub fn unverified() -> Result<ClientConfig, rustls::Error> {
    client_config(None, true)
}

fn client_config(ca_file: Option<PathBuf>, accept_any: bool) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(Verifier { ca_file, accept_any, provider: provider.clone() });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous() // only because the roots are read late: unless `accept_any` is set, the checks are rustls' own
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    // A resumed session would skip the verification against the current roots.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Verifies with rustls' own verifier, built from roots that are read for each handshake.
#[derive(Debug)]
struct Verifier {
    ca_file: Option<PathBuf>,
    accept_any: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.accept_any {
            return Ok(ServerCertVerified::assertion());
        }
        let Roots { store, configured } =
            read_roots(self.ca_file.clone()).map_err(|problem| OtherError(Arc::new(problem)))?;
        let result = WebPkiServerVerifier::builder_with_provider(Arc::new(store), self.provider.clone())
            .build()
            .map_err(|error| OtherError(Arc::new(error)))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match result {
            Err(error) if is_ca_certificate_error(&error) && configured.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Whether the server's own certificate was refused because it is one of an authority (`basicConstraints=CA:TRUE`, which
/// is what `openssl req -x509` makes).
///
/// OpenSSL, and with it git, accepts such a certificate if it is itself the one that is trusted. webpki never does. So
/// the [`Verifier`] accepts it if exactly this certificate is in the CA file: it could have issued one for any name
/// anyway. At this error webpki has checked the dates (`check_issuer_independent_properties` in its `verify_cert.rs`
/// calls `check_validity` before `check_basic_constraints`), but not the name. The proof that the server has the
/// certificate's key is a separate step of the handshake.
fn is_ca_certificate_error(error: &rustls::Error) -> bool {
    // The error's type is webpki's, of which this crate knows only the text.
    matches!(error, rustls::Error::InvalidCertificate(CertificateError::Other(other))
        if other.to_string() == "CaUsedAsEndEntity")
}

/// The certificates that are trusted.
#[derive(Debug)]
struct Roots {
    store: RootCertStore,
    /// Those of the CA file, as they are there.
    configured: Vec<CertificateDer<'static>>,
}

/// Why our root certificates cannot be used; the peer's certificate is not the problem.
#[derive(Debug, thiserror::Error)]
enum RootsProblem {
    #[error("the CA file {} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: pem::Error },
    #[error(
        "the CA file {} and this system's CA certificates could not be read within {READ_TIMEOUT:?}", path.display()
    )]
    Late { path: PathBuf },
    #[error(
        "this system's CA certificates could not be read within {READ_TIMEOUT:?} (SSL_CERT_FILE, SSL_CERT_DIR, or where \
         the distribution keeps them)"
    )]
    SystemLate,
    #[error("the CA file {} contains no usable PEM certificate", path.display())]
    Empty { path: PathBuf },
    #[error("this system has no CA certificates{unreadable}, and no CA file was given")]
    None {
        /// What could not be read, after a colon; empty if there is none.
        unreadable: String,
    },
}

impl RootsProblem {
    fn describe(&self) -> Problem {
        let (transient, hint) = match self {
            Self::Unreadable { .. } | Self::Empty { .. } => (false, CA_FILE),
            Self::Late { .. } | Self::SystemLate => (true, CA_FILE_SYSTEM),
            Self::None { .. } => (false, AUTHORITY),
        };
        Problem { text: self.to_string(), transient, hint }
    }
}

/// More of a CA file is not read, in bytes: a line of a wrong file may have no end.
const CA_FILE_MAX: u64 = 16 << 20;

/// The key under which reads without a CA file are serialized ([`detached_io`] runs one at a time for each path).
const SYSTEM: &str = "the system's CA certificates";

/// Reads the roots on a detached thread, which may hang with its file system; the caller waits for [`READ_TIMEOUT`] at
/// most.
fn read_roots(ca_file: Option<PathBuf>) -> Result<Roots, RootsProblem> {
    let path = ca_file.clone();
    let key = ca_file.as_deref().unwrap_or(Path::new(SYSTEM));
    let read = || detached_io::wait(key, READ_TIMEOUT, move || roots(path.as_deref()));
    // rustls' verifier is a blocking call: on a multi-threaded runtime, other tasks of this thread move to another one.
    let has_workers = Handle::try_current().is_ok_and(|it| it.runtime_flavor() == RuntimeFlavor::MultiThread);
    let read = if has_workers { tokio::task::block_in_place(read) } else { read() };
    read.unwrap_or_else(|| Err(ca_file.map_or(RootsProblem::SystemLate, |path| RootsProblem::Late { path })))
}

/// The system's roots (`SSL_CERT_FILE`, `SSL_CERT_DIR`, or where distributions keep them) and the CA file's. Blocking.
fn roots(ca_file: Option<&Path>) -> Result<Roots, RootsProblem> {
    let mut store = RootCertStore::empty();
    let mut configured = Vec::new();
    if let Some(path) = ca_file {
        let unreadable = |source| RootsProblem::Unreadable { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(|error| unreadable(pem::Error::Io(error)))?;
        let certificates = CertificateDer::pem_reader_iter(file.take(CA_FILE_MAX));
        configured = certificates.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        if store.add_parsable_certificates(configured.iter().cloned()).0 == 0 {
            return Err(RootsProblem::Empty { path: path.to_owned() });
        }
    }
    // System certificates that cannot be read are skipped: the others may be enough.
    let system = rustls_native_certs::load_native_certs();
    store.add_parsable_certificates(system.certs);
    if store.is_empty() {
        let unreadable =
            system.errors.first().map(|error| format!(": {}", one_line(error))).unwrap_or_default();
        return Err(RootsProblem::None { unreadable });
    }
    Ok(Roots { store, configured })
}

/// Returns true if a URL's host is this machine, or the Pod: `localhost` or a loopback address. As in git-sync and
/// kubectl, it is reached without the environment's proxy, whatever `NO_PROXY` says.
pub fn is_local(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Why a TLS handshake failed, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The cause, as a phrase about the server.
    pub text: String,
    /// Whether trying again may help.
    pub transient: bool,
    /// What an operator can do about it.
    pub hint: &'static str,
}

const AUTHORITY: &str = "a private certificate authority is trusted with --ca-file";
const CA_FILE: &str = "name a file of PEM certificates that this user may read";
const CA_FILE_SYSTEM: &str =
    "check the file system that the certificates are on; the next handshake reads them again";
const DATES: &str = "renew the certificate there; if it is valid, set this machine's clock";
const NAME: &str = "use the name that the certificate has, or give the server a certificate for this one";
const CERTIFICATE: &str = "give the server another certificate";
const ITSELF: &str =
    "trust this certificate itself with --ca-file, or make it with basicConstraints=CA:FALSE";
const NO_TLS: &str =
    "check scheme and port: http:// and git:// are without TLS, and https is usually on port 443";
const HANDSHAKE: &str =
    "check the server's TLS settings and log, and proxies in between; TLS 1.2 or 1.3 is needed";

/// Finds the TLS error among an error and its causes and describes it; `None` if there is none.
pub fn problem(error: &(dyn StdError + 'static)) -> Option<Problem> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // The `source` of an io::Error that wraps an error is the source of the wrapped error, not that error itself.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let found = error.downcast_ref::<rustls::Error>();
        if let Some(found) = found.or_else(|| inner?.downcast_ref::<rustls::Error>()) {
            return Some(describe(found));
        }
        cause = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

fn describe(error: &rustls::Error) -> Problem {
    if is_ca_certificate_error(error) {
        let text =
            "its certificate is that of a certificate authority (basicConstraints=CA:TRUE), not of a server"
                .into();
        return Problem { text, transient: false, hint: ITSELF };
    }
    let date = |time: &UnixTime| {
        i64::try_from(time.as_secs())
            .ok()
            .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
            .map_or_else(String::new, |time| time.to_string())
    };
    let (text, hint) = match error {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            CertificateError::UnknownIssuer => ("its certificate has an unknown issuer".into(), AUTHORITY),
            CertificateError::BadSignature => (
                "its certificate is not signed by the authority of that name that is trusted, but with another key"
                    .into(),
                AUTHORITY,
            ),
            CertificateError::Expired => ("its certificate has expired".into(), DATES),
            CertificateError::ExpiredContext { not_after, .. } => {
                (format!("its certificate expired on {}", date(not_after)), DATES)
            }
            CertificateError::NotValidYet => ("its certificate is not valid yet".into(), DATES),
            CertificateError::NotValidYetContext { not_before, .. } => {
                (format!("its certificate is not valid before {}", date(not_before)), DATES)
            }
            CertificateError::NotValidForName => ("its certificate has another name".into(), NAME),
            CertificateError::NotValidForNameContext { expected, presented } => {
                (format!("its certificate is not for the name {} but for {}", expected.to_str(), names(presented)), NAME)
            }
            CertificateError::Revoked => ("its certificate was revoked".into(), CERTIFICATE),
            other => (format!("its certificate is not acceptable: {other}"), CERTIFICATE),
        },
        rustls::Error::Other(OtherError(other)) => match other.downcast_ref::<RootsProblem>() {
            Some(problem) => return problem.describe(),
            None => return Problem { text: other.to_string(), transient: true, hint: HANDSHAKE },
        },
        rustls::Error::InvalidMessage(_) => {
            let text = "the server does not speak TLS".to_owned();
            return Problem { text, transient: true, hint: NO_TLS };
        }
        other => return Problem { text: other.to_string(), transient: true, hint: HANDSHAKE },
    };
    Problem { text, transient: false, hint }
}

/// The names that a certificate is for. rustls writes them as `DnsName("example.com")`.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"').to_owned()
    };
    match presented {
        [] => "none".to_owned(),
        names => quoted(&names.iter().map(bare).collect::<Vec<_>>().join(", ")).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_file_that_is_missing_or_holds_nothing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        assert!(roots(Some(&path)).unwrap_err().to_string().contains("ca.pem"));
        assert!(roots(Some(Path::new("/dev/zero"))).is_err());
        std::fs::write(&path, "nothing here").unwrap();
        assert!(matches!(roots(Some(&path)), Err(RootsProblem::Empty { .. })));
    }

    #[test]
    fn certificates_of_ours_that_cannot_be_read_are_told_from_an_unknown_issuer() {
        let path = || PathBuf::from("/ca.pem");
        let source = pem::Error::MissingSectionEnd { end_marker: Vec::new() };
        for (problem_of_ours, transient, hint) in [
            (RootsProblem::Unreadable { path: path(), source }, false, CA_FILE),
            (RootsProblem::Empty { path: path() }, false, CA_FILE),
            (RootsProblem::Late { path: path() }, true, CA_FILE_SYSTEM),
            (RootsProblem::SystemLate, true, CA_FILE_SYSTEM),
            (RootsProblem::None { unreadable: String::new() }, false, AUTHORITY),
        ] {
            let text = problem_of_ours.to_string();
            let error = rustls::Error::from(OtherError(Arc::new(problem_of_ours)));
            let expected = Problem { text, transient, hint };
            assert_eq!(problem(&std::io::Error::other(error)), Some(expected));
        }
    }

    #[test]
    fn only_this_machine_is_local() {
        for host in ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "[::ffff:127.0.0.1]"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["localhost.example.com", "10.0.0.1", "[fd00::1]", "[::ffff:10.0.0.1]", ""] {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn the_words_name_the_problem_and_its_hosts() {
        let expected = ServerName::try_from("git.quark.test").unwrap();
        let presented = vec!["DnsName(\"other.quark.test\")".to_owned()];
        let error = rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected,
            presented,
        });
        let wrapped = std::io::Error::other(error);
        let found = problem(&wrapped).unwrap();
        let text = "its certificate is not for the name git.quark.test but for other.quark.test";
        assert_eq!((found.text.as_str(), found.transient, found.hint), (text, false, NAME));
        let plain = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let found = problem(&std::io::Error::other(plain)).unwrap();
        assert!(found.transient && !found.hint.contains("--ca-file"), "{found:?}");
        assert!(problem(&std::io::Error::other("x")).is_none());
    }
}
