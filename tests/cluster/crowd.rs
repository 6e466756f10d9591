//! Hundreds of namespaces on a slow API server: their Leases are renewed in time, however much data waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::{Files, World, run};
use crate::kubernetes::{Kubernetes, kubeconfig};
use crate::proxy::Proxy;

const NAMESPACES: usize = 300;
/// What every request takes, at least.
const SLOW: Duration = Duration::from_millis(200);
/// The default: a holder that is silent for so long has lost its Lease.
const DURATION: Duration = Duration::from_secs(15);

#[test]
fn three_hundred_leases_are_renewed_in_time_while_each_request_takes_200_ms() {
    let kubernetes = Kubernetes::shared();
    let namespaces: Vec<String> = (0..NAMESPACES).map(|_| kubernetes.namespace("crowd")).collect();
    let written: Arc<Mutex<BTreeMap<String, Vec<Instant>>>> = Arc::default();
    let noted = Arc::clone(&written);
    let proxy = Proxy::gated(
        kubernetes,
        Box::new(move |method, uri| {
            let path = uri.split('?').next().unwrap_or_default();
            if matches!(method, "POST" | "PUT") && path.contains("/leases") {
                let namespace = path.split('/').nth(5).unwrap_or_default().to_owned();
                noted.lock().unwrap().entry(namespace).or_default().push(Instant::now());
            }
            Box::pin(tokio::time::sleep(SLOW))
        }),
    );
    let world = World::new();
    world.remote.commit(&Files::new().file("map/value", "1"));
    let rules = world.dir().join("rules.yaml");
    let map = json!({ "name": "map", "clusters": { "test": namespaces } });
    std::fs::write(&rules, json!({ "maps": { "map/*": map } }).to_string()).unwrap();
    let mut command = world.treeswap(&["apply", "--ref=main", "--owner=crowd", "--output=lines", "--repo"]);
    command.arg(&world.remote.path).arg("--rules").arg(rules).arg("--kubeconfig");
    command.arg(kubeconfig(&world.dir().join("kubeconfig"), &[("test", proxy.access("admin"))]));
    let began = Instant::now();
    let ran = run::to_end(&mut command).expect_ok("apply to all of them");
    let took = began.elapsed();
    assert!(ran.stdout.contains(&format!("{NAMESPACES} created")), "{}", ran.stdout);
    let written = written.lock().unwrap();
    assert_eq!(written.len(), NAMESPACES, "a Lease each");
    let gaps = written.values().flat_map(|times| times.windows(2).map(|pair| pair[1] - pair[0]));
    let longest = gaps.max().unwrap();
    let writes: usize = written.values().map(Vec::len).sum();
    println!("{took:?}: {writes} writes of Leases, the longest pause of one {longest:?}");
    assert!(longest < DURATION, "a Lease was not renewed for {longest:?}");
    for namespace in [&namespaces[0], &namespaces[NAMESPACES - 1]] {
        assert_eq!(kubernetes.configmap(namespace, "map")["data"]["value"], "1");
    }
}
