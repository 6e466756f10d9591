//! A gauge that has no sample until its value is known. A zero in place of "not known yet" would be taken for a
//! measurement: `time() - 0` is 56 years, and 0 bytes free is a full disk.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::{EncodeGaugeValue, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The gauge. Clones share their value.
#[derive(Debug)]
pub struct OptionalGauge<N>(Arc<Mutex<Option<N>>>);

impl<N> Default for OptionalGauge<N> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<N> Clone for OptionalGauge<N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<N: Copy> OptionalGauge<N> {
    /// Sets the value; `None` removes the sample.
    pub fn set(&self, value: impl Into<Option<N>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = value.into();
    }

    /// Returns the value; `None` if it is not known.
    pub fn get(&self) -> Option<N> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<N> TypedMetric for OptionalGauge<N> {
    const TYPE: MetricType = MetricType::Gauge;
}

impl<N: Copy + EncodeGaugeValue> EncodeMetric for OptionalGauge<N> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        self.get().map_or(Ok(()), |value| encoder.encode_gauge(&value))
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}
