//! Answers of the proxy's own: an error in its wire form, as the API's.

use bytes::Bytes;
use dsec_proto::error::WireError;
use dsec_proto::proxy::Refused;
use hyper::header::{HeaderValue, CONNECTION, CONTENT_TYPE};
use hyper::{Response, StatusCode};

use crate::body::Body;

/// The error as an answer. The connection ends after it: what else was sent on it is not looked at.
#[must_use]
pub fn error(error: &WireError) -> Response<Body> {
    let status = match error.code.as_str() {
        "denied" if error.phase.as_deref() == Some("token") => StatusCode::UNAUTHORIZED,
        "denied" => StatusCode::FORBIDDEN,
        "invalid_argument" => StatusCode::BAD_REQUEST,
        "misdirected" => StatusCode::MISDIRECTED_REQUEST,
        "not_found" => StatusCode::NOT_FOUND,
        "quota_exceeded" => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::BAD_GATEWAY,
    };
    let body = serde_json::json!({ "error": error }).to_string();
    let mut answer = Response::new(Body::Text(Some(Bytes::from(body))));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Why a port of a sandbox could not be reached.
#[must_use]
pub fn unreachable(sandbox_id: &str, port: u16, refused: Refused) -> WireError {
    let nobody = |why: &str| {
        WireError::new("port_unreachable", format!("port {port} of the sandbox {why}"))
            .remedy("Start the service, on any address of the sandbox; `dsec exec ID ss -ltn` shows what listens")
    };
    let error = match refused {
        Refused::Nobody => nobody("has no listener"),
        Refused::Late => nobody("does not accept the connection"),
        Refused::NotExposed => WireError::not_found(format!("port {port} is not exposed")),
        Refused::Gone => WireError::not_found("the sandbox has ended"),
        Refused::NotYet | Refused::Node => WireError::node(
            "ports",
            format!("port {port} cannot be reached at this moment"),
        ),
    };
    error.about(sandbox_id).with("port", port)
}
