//! GitHub Apps: a JSON Web Token (RFC 7519, RS256) signed with the App's key is exchanged for an installation token.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::secret::{Secret, SecretFrom};

/// How many seconds in the past the App's token is dated, and in how many seconds it expires. By its own clock GitHub
/// refuses a token that was issued in the future or is valid for more than ten minutes, so the clocks may differ by a
/// minute.
const BEFORE: i64 = 60;
const AFTER: i64 = 540;

/// A GitHub App and one of its installations.
#[derive(Clone)]
pub struct App {
    /// The base URL of GitHub's API.
    pub base: Url,
    /// The App's client id, or its application id.
    pub issuer: String,
    /// The installation's id.
    pub installation: u64,
    /// The App's private key, in PEM.
    pub key: SecretFrom,
}

impl App {
    /// The URL that issues installation tokens; `None` if the base URL cannot be extended.
    pub(super) fn endpoint(&self) -> Option<Url> {
        let base = self.base.as_str().trim_end_matches('/');
        Url::parse(&format!("{base}/app/installations/{}/access_tokens", self.installation)).ok()
    }
}

#[derive(Serialize)]
struct Claims<'a> {
    iss: &'a str,
    iat: i64,
    exp: i64,
}

/// GitHub's response.
#[derive(Deserialize)]
struct TokenResponse {
    token: String,
    expires_at: Timestamp,
}

/// An installation token and its expiry.
#[derive(Debug)]
pub(super) struct Issued {
    pub(super) token: Secret,
    pub(super) expires_at: Timestamp,
}

/// Makes the App's own token, which authenticates the request for an installation token.
pub(super) fn sign(app: &App, key: &Secret, now: Timestamp) -> Result<Secret, &'static str> {
    let key = match PrivateKeyDer::from_pem_slice(key.expose().as_bytes()) {
        Ok(PrivateKeyDer::Pkcs1(der)) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
        Ok(PrivateKeyDer::Pkcs8(der)) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
        _ => return Err("the private key is not PEM of an RSA key"),
    };
    let key = key.map_err(|_| "the private key is not an RSA key of 2048 bits or more")?;
    let now = now.as_second();
    let claims = Claims { iss: &app.issuer, iat: now - BEFORE, exp: now + AFTER };
    let claims = serde_json::to_vec(&claims).map_err(|_| "its id cannot be written as JSON")?;
    let head = URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256","typ":"JWT"}"#);
    let signed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims));
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)
        .map_err(|_| "the private key does not sign")?;
    Ok(Secret::new(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))))
}

/// Parses GitHub's response.
pub(super) fn read(text: &str) -> Result<Issued, &'static str> {
    let TokenResponse { token, expires_at } =
        serde_json::from_str(text).map_err(|_| "answered without a token and expires_at")?;
    Ok(Issued { token: Secret::new(token), expires_at })
}
