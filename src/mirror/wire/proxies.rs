//! What the variables for proxies say about a URL. Which proxy they name is up to the http library, which silently goes
//! without one if it cannot use it.

use hyper_util::client::proxy::matcher::Matcher;
use url::Url;

/// Returns true if `NO_PROXY` excepts the URL's host from all proxies. As in git, which uses libcurl, the variable in
/// lower case wins unless it is empty, and blanks separate hosts, too.
pub(super) fn is_excepted(url: &Url) -> bool {
    let excepted = first_given(&["no_proxy", "NO_PROXY"]).map(|(_, list)| list).unwrap_or_default();
    let hosts = excepted.split(|c: char| c == ',' || c.is_whitespace()).filter(|host| !host.is_empty());
    let excepted = hosts.collect::<Vec<_>>().join(",");
    let proxies = Matcher::builder().all("http://any.invalid").no(excepted).build();
    let Ok(url) = url.as_str().parse() else { return false };
    proxies.intercept(&url).is_none()
}

/// The variable that names the proxy for the URL, if its value cannot be used. The names are in the library's order.
pub(super) fn unusable(url: &Url) -> Option<&'static str> {
    let own =
        if url.scheme() == "https" { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    let (name, value) = first_given(&own).or_else(|| first_given(&["ALL_PROXY", "all_proxy"]))?;
    let url = url.as_str().parse().ok()?;
    Matcher::builder().all(value).build().intercept(&url).is_none().then_some(name)
}

/// The first of the variables that is set and not empty, and its value.
fn first_given(names: &[&'static str]) -> Option<(&'static str, String)> {
    let mut values = names.iter().filter_map(|name| Some((*name, std::env::var(name).ok()?)));
    values.find(|(_, value)| !value.is_empty())
}
