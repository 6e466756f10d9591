use super::*;

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
