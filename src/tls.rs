//! Whom we trust. The roots are read anew for every handshake, so that a rotated bundle needs no restart; connections
//! are kept, so that this is rare.

use std::error::Error as StdError;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
};

/// A client's configuration. No file is read yet.
pub fn config(ca_file: Option<PathBuf>) -> Result<ClientConfig, rustls::Error> {
    trusting(ca_file, false)
}

/// A client's configuration that takes any certificate: only where an operator asked for exactly that.
pub fn unverified() -> Result<ClientConfig, rustls::Error> {
    trusting(None, true)
}

fn trusting(ca_file: Option<PathBuf>, blindly: bool) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(Verifier { ca_file, blindly, provider: provider.clone() });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous() // only in that roots are read late: unless blindly, the checks are rustls' own
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    // A resumed session would skip the verification, and with it the roots as they are now.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

#[derive(Debug)]
struct Verifier {
    ca_file: Option<PathBuf>,
    blindly: bool,
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
        if self.blindly {
            return Ok(ServerCertVerified::assertion());
        }
        let roots = roots(self.ca_file.as_deref()).map_err(|problem| OtherError(Arc::new(problem)))?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|error| OtherError(Arc::new(error)))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
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

/// Our roots, not theirs, are the problem.
#[derive(Debug, thiserror::Error)]
enum RootsProblem {
    #[error("the CA file {} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("the CA file {} holds no PEM certificate", path.display())]
    Empty { path: PathBuf },
    #[error("this system has no CA certificates, and no CA file was given")]
    None,
}

/// The system's roots (`SSL_CERT_FILE`, `SSL_CERT_DIR`, or where distributions keep them) and the CA file's.
fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, RootsProblem> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = ca_file {
        let unreadable = |source| RootsProblem::Unreadable { path: path.to_owned(), source };
        let given = CertificateDer::pem_file_iter(path)
            .and_then(|certificates| certificates.collect::<Result<Vec<_>, _>>())
            .map_err(unreadable)?;
        if roots.add_parsable_certificates(given).0 == 0 {
            return Err(RootsProblem::Empty { path: path.to_owned() });
        }
    }
    // What can't be read of the system's is not ours to judge: the rest may do.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(RootsProblem::None) } else { Ok(roots) }
}

/// The TLS problem among an error's causes, in words, and whether it may pass by itself.
pub fn problem(error: &(dyn StdError + 'static)) -> Option<(String, bool)> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // An io::Error made of another error names that error's source as its own.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let found = error.downcast_ref::<rustls::Error>();
        if let Some(found) = found.or_else(|| inner?.downcast_ref::<rustls::Error>()) {
            return Some(words(found));
        }
        cause = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

fn words(error: &rustls::Error) -> (String, bool) {
    let date = |time: &UnixTime| {
        i64::try_from(time.as_secs())
            .ok()
            .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
            .map_or_else(String::new, |time| time.to_string())
    };
    let text = match error {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            CertificateError::UnknownIssuer => "its certificate has an unknown issuer".into(),
            CertificateError::BadSignature => {
                "its certificate is not signed by the authority of that name that we trust, but with another key".into()
            }
            CertificateError::Expired => "its certificate has expired".into(),
            CertificateError::ExpiredContext { not_after, .. } => {
                format!("its certificate expired on {}", date(not_after))
            }
            CertificateError::NotValidYet => "its certificate is not valid yet".into(),
            CertificateError::NotValidYetContext { not_before, .. } => {
                format!("its certificate is not valid before {}", date(not_before))
            }
            CertificateError::NotValidForName => "its certificate has another name".into(),
            CertificateError::NotValidForNameContext { expected, presented } => format!(
                "its certificate is not for the name {} but for {}",
                expected.to_str(),
                if presented.is_empty() { "none".into() } else { presented.join(", ") }
            ),
            CertificateError::Revoked => "its certificate was revoked".into(),
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                "its certificate is that of a certificate authority, not of a server (make it with \
                 basicConstraints=CA:FALSE)"
                    .into()
            }
            other => format!("its certificate is not acceptable: {other}"),
        },
        rustls::Error::Other(other) => return (other.to_string(), false),
        rustls::Error::InvalidMessage(_) => return ("what answers there does not speak TLS".into(), true),
        other => return (other.to_string(), true),
    };
    (text, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_file_that_is_missing_or_holds_nothing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        assert!(roots(Some(&path)).unwrap_err().to_string().contains("ca.pem"));
        std::fs::write(&path, "nothing here").unwrap();
        assert!(matches!(roots(Some(&path)), Err(RootsProblem::Empty { .. })));
    }

    #[test]
    fn the_words_name_the_problem_and_its_hosts() {
        let expected = ServerName::try_from("git.example.com").unwrap();
        let presented = vec!["DnsName(\"other.example.com\")".to_owned()];
        let error = rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected,
            presented,
        });
        let wrapped = std::io::Error::other(error);
        let (text, transient) = problem(&wrapped).unwrap();
        assert!(
            text.contains("git.example.com") && text.contains("other.example.com") && !transient,
            "{text}"
        );
        assert!(problem(&std::io::Error::other("x")).is_none());
    }
}
