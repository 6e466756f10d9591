use super::*;
use crate::retention;
use crate::store::{Durability, Layout, Spare};

/// Options of a root without spares.
pub(super) fn store_options(root: &Path) -> store::Options {
    let retention = retention::Options {
        grace: Duration::ZERO,
        max_pin: Duration::ZERO,
        max_generations: 8,
        max_bytes: None,
    };
    store::Options {
        root: root.to_owned(),
        layout: Layout::Kubelet,
        operator_names: std::collections::BTreeSet::new(),
        durability: Durability::None,
        spare: Spare::Off,
        group_write: false,
        writers: 1,
        retention,
    }
}

#[tokio::test]
async fn a_panic_of_the_delivery_ends_the_process_while_the_sync_goes_on() {
    let ending = CancellationToken::new();
    let delivery = async { panic!("a defect") };
    let both = tokio::spawn(run_both(std::future::pending::<()>(), delivery, ending.clone()));
    assert!(both.await.unwrap_err().is_panic());
    let delivery = ending.clone();
    let delivery = async move { delivery.cancelled().await };
    assert_eq!(run_both(async { "done" }, delivery, ending).await, "done");
}
