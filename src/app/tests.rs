use super::*;
use crate::human::assert_message_style;

#[test]
fn every_variant_is_one_line_and_says_what_to_do() {
    let io = || std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    let hook = hooks::Error {
        kind: hooks::Kind::Exec,
        revision: crate::revision::Revision(crate::revision::ObjectId([0xab; 20])),
        why: hooks::Failure::ShutDown,
    };
    let listener = [
        admin::Error::Address("x".into()),
        admin::Error::Bind { bind: ":1".into(), source: io() },
        admin::Error::Bind { bind: ":1".into(), source: std::io::ErrorKind::AddrInUse.into() },
        admin::Error::Accept { address: ([127, 0, 0, 1], 1).into(), source: io() },
    ];
    let each = [
        Error::Store(store::Error::Cancelled),
        Error::Mirror(mirror::Error::Cancelled),
        Error::Source(SourceError {
            what: "x".into(),
            hints: vec!["y".into()],
            class: crate::retry::ErrorClass::Transient,
        }),
        Error::GaveUp { failures: 2, last: sync::Error::Interrupted },
        Error::Interrupted,
        Error::Hook(hook),
        Error::Sources { sources: vec!["jobs".into()] },
        Error::Stale { sources: vec!["jobs".into()] },
        Error::Sandbox(sandbox::Missing { parts: vec!["Landlock", "seccomp"] }),
        Error::System { act: "start the runtime", source: io() },
    ];
    for error in each.into_iter().chain(listener.map(Error::Admin)) {
        match &error {
            Error::Admin(
                admin::Error::Address(_) | admin::Error::Bind { .. } | admin::Error::Accept { .. },
            )
            | Error::Store(_)
            | Error::Mirror(_)
            | Error::Source(_)
            | Error::GaveUp { .. }
            | Error::Interrupted
            | Error::Hook(_)
            | Error::Sources { .. }
            | Error::Stale { .. }
            | Error::Sandbox(_)
            | Error::System { .. } => {}
        }
        assert_message_style(&error, &error.hints());
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
